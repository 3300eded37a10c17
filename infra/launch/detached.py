"""A process in a session of its own: it outlives whoever started it, and a Ctrl-C in the terminal passes it by."""

import contextlib
import os
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from infra.launch.processes import start_time_s


@dataclass(frozen=True)
class DetachedProcess:
    """A process, told apart from a later one of the same pid by its start."""

    pid: int
    create_time_s: float
    """See `infra.launch.processes.start_time_s`."""


def start_detached(command: list[str], *, environment: dict[str, str], log: Path) -> DetachedProcess:
    """Start a program whose output is appended to `log`; returns at once, the program keeps no tie to this process."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started_s = start_time_s(process.pid)  # before anybody reaps it: even a dead process still tells
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    return DetachedProcess(process.pid, started_s)


def request_stop(pid: int) -> None:
    """Send SIGTERM to a process; one that is gone needs none."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
