"""Starting, finding, watching and stopping attempts. The run directory says what is true; this only looks."""

import shutil
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra import storage
from infra.config import ClusterConfig
from infra.launch import local, processes
from infra.locks import exclusive
from tasks.attempt_end import settle
from tasks.config import RecoveryConfig
from tasks.hang import HangDetector, dump_stacks
from tasks.stop import STOP
from training.checkpoint_manifest import list_checkpoints
from training.exits import ExitRecord
from training.rundir import AttemptRecord, RunDir

_POLL_S = 0.25
_LAUNCH_WAIT_S = 60


def find_live_attempt(run: RunDir) -> AttemptRecord | None:
    """The attempt of this run that is still running on this machine, whoever started it."""
    attempts = run.attempts()
    return attempts[-1] if attempts and _is_running(attempts[-1]) else None


@task(name="launch-attempt", cache_policy=NO_CACHE)
def launch_or_attach(run_dir: str, cluster: ClusterConfig) -> AttemptRecord:
    """Start torchrun for the next attempt, or find the attempt that is already running.

    A lock makes sure that of two flows only one starts it; the other one attaches. An attempt that was told to
    stop by somebody who is gone is not attached to: it is let finish, and the next one goes on from its checkpoint.
    """
    run = RunDir(Path(run_dir))
    with exclusive(run.path / "launch.lock", what="starting an attempt", wait_s=cluster.stop_budget_s + _LAUNCH_WAIT_S):
        live = find_live_attempt(run)
        if live is not None and run.stop_file.exists():
            stop(run, live, cluster)
        elif live is not None:
            run.record_event("attempt_attached", attempt=live.number, pid=live.pid)
            return live
        _settle_earlier(run)
        run.stop_file.unlink(missing_ok=True)
        return _launch(run, cluster)


def _settle_earlier(run: RunDir) -> None:
    """Make sure that nothing of an earlier attempt runs, and that each has an end on record: they are counted."""
    for attempt in run.attempts():
        if run.exit_record(attempt.number) is None:
            processes.end_marked(attempt.mark, grace_s=0)
            settle(run, attempt, found="nobody was watching when it ended")


def _launch(run: RunDir, cluster: ClusterConfig) -> AttemptRecord:
    checkpoints = list_checkpoints(run)
    number = max((a.number for a in run.attempts()), default=0) + 1
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
    shutil.rmtree(run.path / "heartbeat", ignore_errors=True)  # of ranks that are gone
    _write(run, attempt)  # the mark first: whoever dies between start and record leaves processes that are found
    launched = local.launch(run.path, number=number, mark=attempt.mark, cluster=cluster)
    attempt = attempt.model_copy(update={"pid": launched.pid, "create_time_s": launched.create_time_s})
    _write(run, attempt)
    run.record_event("attempt_started", attempt=number, pid=launched.pid, step=attempt.resumed_from_step)
    return attempt


def watch(
    run: RunDir,
    attempt: AttemptRecord,
    *,
    cluster: ClusterConfig,
    recovery: RecoveryConfig,
    meanwhile: Callable[[], None],
) -> ExitRecord:
    """Look after an attempt until it ends; a stop request or a hang ends it.

    Args:
        meanwhile: called between looks; must not raise and not take long.

    Returns:
        How it ended.
    """
    hang = HangDetector(run, recovery)
    while _is_running(attempt):
        if STOP.wait(_POLL_S):
            return stop(run, attempt, cluster)
        if hang.hangs():
            dump_stacks(run, attempt)
            run.record_event("attempt_hung", attempt=attempt.number, limit_s=hang.limit_s)
            processes.end_marked(attempt.mark, grace_s=0)
            return settle(run, attempt, found=f"it hung: no sign of progress within {hang.limit_s:.0f} s")
        meanwhile()
    # At once: ranks would take SIGTERM for a polite stop, and a crash would end as "stopped on request".
    processes.end_marked(attempt.mark, grace_s=0)
    return settle(run, attempt, found="its processes are gone and left no word")


def stop(run: RunDir, attempt: AttemptRecord, cluster: ClusterConfig) -> ExitRecord:
    """End an attempt politely: a checkpoint first, within `cluster.stop_budget_s`; SIGKILL for whatever is left."""
    if not run.stop_file.exists():
        run.record_event("stop_requested", attempt=attempt.number)
        try:
            storage.write_text(str(run.stop_file), "")
        except OSError:  # a full disk must not keep anybody from stopping
            local.request_stop(attempt.pid)
    deadline = time.monotonic() + cluster.stop_budget_s
    while _is_running(attempt) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return kill(run, attempt, found=f"still running {cluster.stop_budget_s:.0f} s after the stop request")


def kill(run: RunDir, attempt: AttemptRecord, *, found: str) -> ExitRecord:
    """End every process of an attempt at once."""
    processes.end_marked(attempt.mark, grace_s=0)
    return settle(run, attempt, found=found)


def _is_running(attempt: AttemptRecord) -> bool:
    # The agent lives as long as any of its workers; workers that lost their agent end themselves.
    here = attempt.host == socket.gethostname() and attempt.pid > 0
    return here and processes.is_alive(attempt.pid, attempt.create_time_s)


def _write(run: RunDir, attempt: AttemptRecord) -> None:
    storage.write_json(str(run.attempt(attempt.number) / "attempt.json"), attempt.model_dump())
