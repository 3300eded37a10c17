"""One owner at a time, told by name. The kernel releases a lock when its holder dies, however it dies."""

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from infra.errors import InputError

_POLL_S = 0.05
_held: set[int] = set()


class LockHeldError(InputError):
    """Somebody else is at it; the message names them."""


@contextlib.contextmanager
def exclusive(path: Path, *, what: str, wait_s: float = 0) -> Iterator[None]:
    """Own `path` until the block ends or this process dies.

    The lock belongs to this process alone: children do not inherit it, so a worker that outlives its parent holds
    nothing. The file stays behind, empty: removing it would let two processes lock two files of one name.

    Args:
        path: the lock file; it and its folder are created.
        what: what it is held for, told to those who are refused.
        wait_s: how long to wait for the owner to finish before giving up.

    Raises:
        LockHeldError: another owner is alive, in this process or another.
    """
    with _opened(path) as fd:
        deadline = time.monotonic() + wait_s
        while not try_lock(fd):
            if time.monotonic() >= deadline:
                raise LockHeldError(f"{path} is held by {_owner(fd)}", hint="wait for it to end, or stop it")
            time.sleep(_POLL_S)
        _sign(fd, what)
        try:
            yield
        finally:
            if fd in _held:  # see _opened
                os.ftruncate(fd, 0)


@contextlib.contextmanager
def shared(path: Path) -> Iterator[int]:
    """Be one of any number of users of `path`; yields the open file, for `try_lock` by whoever leaves last.

    The caller sees to it that nobody owns the file alone at that moment: this does not wait.

    Raises:
        BlockingIOError: somebody owns it alone.
    """
    with _opened(path) as fd:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield fd


def try_lock(fd: int) -> bool:
    """Own an open file alone, if nobody else uses it right now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    _held.add(fd)
    try:
        yield fd
    finally:
        if fd in _held:  # in a forked child the file is closed already, and its number may be another file's
            _held.discard(fd)
            os.close(fd)


def _close_in_child() -> None:
    # A forked child shares the open file, and with it the lock: it would go on holding it after its parent died.
    for fd in _held:
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _sign(fd: int, what: str) -> None:
    owner = {"what": what, "pid": os.getpid(), "host": socket.gethostname(), "since_s": time.time()}
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(owner).encode() + b"\n", 0)


def _owner(fd: int) -> str:
    try:
        owner = json.loads(os.pread(fd, 4096, 0))
    except json.JSONDecodeError:  # locked this instant, not signed yet
        return "another process"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner["since_s"]))
    return f"{owner['what']} (process {owner['pid']} on {owner['host']}, since {since})"
