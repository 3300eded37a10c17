"""A server on loopback that comes with its first user and goes with its last one, whatever happens in between."""

import contextlib
import os
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pydantic import BaseModel, ValidationError

from infra import storage
from infra.errors import StayerError
from infra.launch.detached import request_stop, start_detached
from infra.launch.processes import is_alive
from infra.locks import LockHeldError, exclusive, shared, try_lock

HOST = "127.0.0.1"
_POLL_S = 0.1
_KEEP_S = 1.0
_START_TIMEOUT_S = 120
_STOP_TIMEOUT_S = 20
_ANSWER_TIMEOUT_S = 20
_DOOR_TIMEOUT_S = 2 * (_START_TIMEOUT_S + _STOP_TIMEOUT_S)


@dataclass(frozen=True)
class Service:
    """How to start one server and how to tell that it works."""

    name: str
    """Names its files in ``<home>/services``: record, log and locks."""
    command: Callable[[int], list[str]]
    """Command line for a port."""
    port: int
    """Taken if it is free; otherwise the kernel picks one."""
    health: str
    """Path that answers 200 once the server works."""
    environment: Callable[[int], Mapping[str, str]] = field(default=lambda port: {})
    """Variables for a port, on top of this process's own."""
    without: tuple[str, ...] = ()
    """Variables of this process that the server must not see."""


class Record(BaseModel, frozen=True):
    """`<home>/services/<name>.json`: the running server."""

    pid: int
    create_time_s: float
    port: int

    @property
    def url(self) -> str:
        """Address of the server, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    def is_alive(self) -> bool:
        """Whether its process exists; it may be starting or stuck."""
        return is_alive(self.pid, self.create_time_s)


@contextlib.contextmanager
def kept_alive(service: Service, folder: Path) -> Iterator[Record]:
    """Use a server as `in_use` does, and start it again at its address whenever it dies meanwhile.

    Raises:
        StayerError: it does not start.
    """
    with in_use(service, folder) as record:
        leaving = threading.Event()
        keeper = threading.Thread(
            target=_keep, args=(service, folder, leaving), daemon=True, name=f"keep-{service.name}"
        )
        keeper.start()
        try:
            yield record
        finally:
            leaving.set()
            keeper.join()


def _keep(service: Service, folder: Path, leaving: threading.Event) -> None:
    while not leaving.wait(_KEEP_S):
        record = _recorded(service, folder)
        if record is not None and record.is_alive():
            continue
        # Another user may be starting it, or it does not start right now: the next look tells.
        with (
            contextlib.suppress(LockHeldError, StayerError, OSError),
            exclusive(folder / f"{service.name}.door", what=f"restarting {service.name}", wait_s=1),
        ):
            if not leaving.is_set() and _find(service, folder) is None:
                _start(service, folder)


@contextlib.contextmanager
def in_use(service: Service, folder: Path) -> Iterator[Record]:
    """Find the running server or start it; whoever leaves last stops it.

    Users hold a shared lock, so that the kernel forgets those that are killed. A server that lost all its users
    that way keeps running and is found by the next.

    Args:
        service: what to run.
        folder: where records, locks and logs lie; one server of a name a folder.

    Raises:
        StayerError: it does not start.
    """
    door = folder / f"{service.name}.door"  # one at a time comes or goes: nobody sees a half-started server
    with contextlib.ExitStack() as stack:
        with exclusive(door, what=f"starting {service.name}", wait_s=_DOOR_TIMEOUT_S):
            users = stack.enter_context(shared(folder / f"{service.name}.users"))
            record = _find(service, folder) or _start(service, folder)
        try:
            yield record
        finally:
            with exclusive(door, what=f"stopping {service.name}", wait_s=_DOOR_TIMEOUT_S):
                if try_lock(users):
                    _stop(_recorded(service, folder) or record)  # another user may have replaced one that died
                    _record_file(service, folder).unlink(missing_ok=True)


def log_file(service: Service, folder: Path) -> Path:
    """What the server printed."""
    return folder / f"{service.name}.log"


def _record_file(service: Service, folder: Path) -> Path:
    return folder / f"{service.name}.json"


def _recorded(service: Service, folder: Path) -> Record | None:
    try:
        return Record.model_validate(storage.read_json(str(_record_file(service, folder))))
    except (FileNotFoundError, ValidationError):
        return None


def _find(service: Service, folder: Path) -> Record | None:
    """The server on record if it lives and answers; one that lives and does not answer is ended."""
    record = _recorded(service, folder)
    if record is None or not record.is_alive():
        return None
    deadline = time.monotonic() + _ANSWER_TIMEOUT_S  # a busy machine is no reason to end it
    while record.is_alive() and time.monotonic() < deadline:
        if _answers(service, record):
            return record
        time.sleep(_POLL_S)
    _stop(record)
    return None


def _start(service: Service, folder: Path) -> Record:
    """Start the server and wait until it answers."""
    former = _recorded(service, folder)
    wanted = former.port if former else service.port  # whoever still knows the old address finds the new server there
    for last_try in (False, False, True):
        port = _free_port(wanted)
        environment = {k: v for k, v in os.environ.items() if k not in service.without}
        process = start_detached(
            service.command(port),
            environment=environment | dict(service.environment(port)),
            log=log_file(service, folder),
        )
        record = Record(pid=process.pid, create_time_s=process.create_time_s, port=port)
        storage.write_json(str(_record_file(service, folder)), record.model_dump())
        if _comes_up(service, record):
            return record
        # Somebody may have taken the port between the choice and the start: another port is worth a try, then.
        if last_try or _is_free(port):
            break
    raise StayerError(
        f"the {service.name} server ended while it was starting: {_last_words(log_file(service, folder))}",
        hint=f"its log is {log_file(service, folder)}",
    )


def _comes_up(service: Service, record: Record) -> bool:
    """Wait until the server answers; False if its process ended before."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    try:
        while record.is_alive():
            if _answers(service, record):
                return True
            if time.monotonic() > deadline:
                raise StayerError(f"the {service.name} server does not answer {record.url} after {_START_TIMEOUT_S} s")
            time.sleep(_POLL_S)
    except BaseException:
        _stop(record)
        raise
    return False


def _stop(record: Record) -> None:
    """End a server: SIGTERM, then SIGKILL for its session."""
    if not record.is_alive():
        return
    request_stop(record.pid)
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while record.is_alive():
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(record.pid, signal.SIGKILL)
        time.sleep(_POLL_S)


def _answers(service: Service, record: Record) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback is never behind a proxy
    try:
        with opener.open(record.url + service.health, timeout=2) as response:
            works = response.status == 200
    except (urllib.error.URLError, OSError):
        return False
    return works and _listens(record)


def _listens(record: Record) -> bool:
    """Whether the port is held by this server and not by a stranger that answers as kindly."""
    try:
        server = psutil.Process(record.pid)
        sockets = [s for p in (server, *server.children(recursive=True)) for s in p.net_connections(kind="tcp")]
    except psutil.NoSuchProcess:
        return False
    return any(s.status == psutil.CONN_LISTEN and s.laddr.port == record.port for s in sockets)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _free_port(wanted: int) -> int:
    if _is_free(wanted):
        return wanted
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
