"""The processes of an attempt: found by a mark in their environment, ended to the last one.

A mark survives what a parent's pid or a process group does not: orphans, new sessions, a dead launcher.
"""

import contextlib
import time
from collections.abc import Callable

import psutil

from infra.errors import StayerError

MARK_VARIABLE = "STAYER_ATTEMPT"
_POLL_S = 0.05
_KILL_TIMEOUT_S = 60
_GONE = (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied)
_SAME_START_S = 0.02  # the kernel counts in hundredths


def start_time_s(pid: int) -> float:
    """When a process started, in seconds since the machine did: setting the clock does not change it.

    Raises:
        psutil.NoSuchProcess: there is none.
    """
    return psutil.Process(pid).create_time() - psutil.boot_time()


def is_alive(pid: int, create_time_s: float) -> bool:
    """Whether the process with this pid is the one that started then, and not a zombie.

    Args:
        pid: process id; ids are reused.
        create_time_s: its `start_time_s`.
    """
    try:
        # Twice: the clock may be set just between the two readings that a start time is made of.
        same = any(abs(start_time_s(pid) - create_time_s) <= _SAME_START_S for _ in range(2))
        return same and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def marked(mark: str) -> list[psutil.Process]:
    """Living processes of this user that carry the mark; zombies are dead."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(*_GONE):
            if process.environ().get(MARK_VARIABLE) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end_marked(mark: str, *, grace_s: float) -> None:
    """End every process that carries the mark: SIGTERM, `grace_s` seconds to leave, then SIGKILL; waits for the last.

    Raises:
        StayerError: a process survived SIGKILL (it hangs in the kernel).
    """
    if grace_s > 0:
        _signal(mark, psutil.Process.terminate)
        deadline = time.monotonic() + grace_s
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while left := _signal(mark, psutil.Process.kill):  # again and again: it may be starting children
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in left)
            raise StayerError(
                f"process {pids} of attempt {mark} is still there {_KILL_TIMEOUT_S} s after SIGKILL",
                hint="it hangs in the kernel (a driver or a dead network file system): the machine needs a restart",
            )
        time.sleep(_POLL_S)


def _signal(mark: str, send: Callable[[psutil.Process], None]) -> list[psutil.Process]:
    found = marked(mark)
    for process in found:
        with contextlib.suppress(*_GONE):
            send(process)
    return found
