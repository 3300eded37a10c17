"""Starting, finding and watching attempts. The run directory says what is true; the orchestrator only looks."""

import socket
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from prefect import task

from infra import storage
from infra.config import ClusterConfig
from infra.launch import local, processes
from infra.locks import exclusive
from tasks.attempt_end import settle
from tasks.config import RecoveryConfig
from training.checkpoint_manifest import list_checkpoints
from training.exits import ExitRecord
from training.rundir import AttemptRecord, RunDir

_POLL_S = 0.25
_ORPHAN_GRACE_S = 10
_LAUNCH_WAIT_S = 60


class StopRequest:
    """A wish to stop the run in progress: set by the command line's signal handler, read by `watch`."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self.watching = False

    def set(self) -> None:
        """Ask the running attempt to checkpoint and leave."""
        self._wanted.set()

    def is_set(self) -> bool:
        """Whether somebody asked."""
        return self._wanted.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep that a request cuts short; returns whether there is one."""
        return self._wanted.wait(seconds)


STOP = StopRequest()
"""The stop request of this process."""


def find_live_attempt(run: RunDir) -> AttemptRecord | None:
    """The attempt of this run that is still running on this machine, whoever started it."""
    attempts = run.attempts()
    return attempts[-1] if attempts and _is_running(attempts[-1]) else None


def _is_running(attempt: AttemptRecord) -> bool:
    # The agent lives as long as any of its workers; workers that lost their agent end themselves.
    here = attempt.host == socket.gethostname() and attempt.pid > 0
    return here and processes.is_alive(attempt.pid, attempt.create_time_s)


@task(name="launch-attempt")
def launch_or_attach(run_dir: str, cluster: ClusterConfig) -> AttemptRecord:
    """Start torchrun for the next attempt, or find the attempt that is already running.

    A lock makes sure that of two flows only one starts it; the other one attaches.
    """
    run = RunDir(Path(run_dir))
    with exclusive(run.path / "launch.lock", what="starting an attempt", wait_s=_LAUNCH_WAIT_S):
        live = find_live_attempt(run)
        if live is not None:
            run.record_event("attempt_attached", attempt=live.number, pid=live.pid)
            return live
        for earlier in run.attempts()[-1:]:
            processes.end_marked(earlier.mark, grace_s=_ORPHAN_GRACE_S)
        run.stop_file.unlink(missing_ok=True)
        number = max((a.number for a in run.attempts()), default=0) + 1
        checkpoints = list_checkpoints(run)
        attempt = AttemptRecord(
            number=number,
            mark=f"{run.run_id}:{number}:{uuid.uuid4().hex[:12]}",
            host=socket.gethostname(),
            pid=0,
            create_time_s=0,
            world_size=cluster.nodes * cluster.processes_per_node,
            resumed_from_step=checkpoints[-1].step if checkpoints else 0,
            started_s=time.time(),
        )
        _write(run, attempt)  # the mark first: whoever dies between start and record leaves processes that are found
        launched = local.launch(run.path, number=number, mark=attempt.mark, cluster=cluster)
        attempt = attempt.model_copy(update={"pid": launched.pid, "create_time_s": launched.create_time_s})
        _write(run, attempt)
        run.record_event("attempt_started", attempt=number, pid=launched.pid, step=attempt.resumed_from_step)
        return attempt


def _write(run: RunDir, attempt: AttemptRecord) -> None:
    storage.write_json(str(run.attempt(attempt.number) / "attempt.json"), attempt.model_dump())


def watch(
    run: RunDir,
    attempt: AttemptRecord,
    *,
    cluster: ClusterConfig,
    recovery: RecoveryConfig,
    until: Callable[[], bool],
    meanwhile: Callable[[], None],
) -> ExitRecord | None:
    """Look after an attempt until it ends or `until` has something for the caller to do.

    A stop request, a signal to this process or a hang ends the whole attempt: politely first, within
    `cluster.stop_budget_s`, and by SIGKILL for whatever is left.

    Args:
        until: polled; a true answer hands control back while the attempt goes on.
        meanwhile: called between looks; must not raise and not take long.

    Returns:
        How the attempt ended, or None if `until` called back.
    """
    hang = _HangDetector(run, recovery)
    STOP.watching = True
    try:
        while _is_running(attempt):
            if STOP.wait(_POLL_S):
                return _stop(run, attempt, cluster)
            if hang.seen():
                run.record_event("attempt_hung", attempt=attempt.number, limit_s=hang.limit_s)
                processes.end_marked(attempt.mark, grace_s=0)
                return settle(run, attempt, found=f"no step within {hang.limit_s:.0f} s: hung")
            if until():
                return None
            meanwhile()
    except BaseException:  # a signal to this process, such as a cancelled flow run, ends the training too
        _stop(run, attempt, cluster)
        raise
    finally:
        STOP.watching = False
    processes.end_marked(attempt.mark, grace_s=_ORPHAN_GRACE_S)
    return settle(run, attempt, found="the processes are gone and left no word (killed?)")


def _stop(run: RunDir, attempt: AttemptRecord, cluster: ClusterConfig) -> ExitRecord:
    run.record_event("stop_requested", attempt=attempt.number)
    storage.write_text(str(run.stop_file), "")
    deadline = time.monotonic() + cluster.stop_budget_s
    while processes.marked(attempt.mark) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    processes.end_marked(attempt.mark, grace_s=0)
    return settle(run, attempt, found=f"still running {cluster.stop_budget_s:.0f} s after the stop signal")


class _HangDetector:
    """No step within max(factor x median step time, floor) is a hang; start-up counts as a step."""

    def __init__(self, run: RunDir, recovery: RecoveryConfig) -> None:
        self._run, self._recovery = run, recovery
        self._size, self._changed_s = -1, time.monotonic()
        self.limit_s = recovery.hang_floor_s

    def seen(self) -> bool:
        file = self._run.metrics_file
        size = file.stat().st_size if file.exists() else 0
        now = time.monotonic()
        if size != self._size:
            self._size, self._changed_s = size, now
            return False
        if now - self._changed_s <= self._recovery.hang_floor_s:
            return False
        steps = [row["step_s"] for row in self._run.metrics()[-50:]]
        median_s = statistics.median(steps) if steps else 0.0
        self.limit_s = max(self._recovery.hang_factor * median_s, self._recovery.hang_floor_s)
        return now - self._changed_s > self.limit_s
