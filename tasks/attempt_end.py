"""How an attempt ended: by its own word, else by what it left behind."""

import re
import signal
import time

from infra import storage
from training.exits import ExitReason, ExitRecord
from training.rundir import AttemptRecord, RunDir

# torchrun's summary of a failed worker; a peer that it ended itself (SIGTERM) is not a cause.
_FAILED_RANK = re.compile(r"rank\s*:\s*(\d+).*\n\s*exitcode\s*:\s*(-?\d+)")


def settle(run: RunDir, attempt: AttemptRecord, *, found: str) -> ExitRecord:
    """The attempt's own exit record; if it left none, one is written from its peers' words and torchrun's log.

    Args:
        found: what the watcher saw, for an attempt of which nothing else is known.
    """
    record = run.exit_record(attempt.number)
    if record is None:
        # A rank that lost another one knows the step, not the cause.
        record = next(iter(run.peer_exit_records(attempt.number)), None) or _unknown(run, attempt, found)
        killed = _ended_by_signal(run, attempt)
        if killed is not None:
            rank, name = killed
            record = record.model_copy(
                update={"reason": ExitReason.KILLED, "rank": rank, "message": f"rank {rank} was ended by {name}"}
            )
        storage.write_json(str(run.attempt(attempt.number) / "exit.json"), record.model_dump(mode="json"))
    return record


def _ended_by_signal(run: RunDir, attempt: AttemptRecord) -> tuple[int, str] | None:
    """Rank and signal of a worker that a signal ended, as torchrun saw it."""
    log = run.attempt(attempt.number) / "torchrun.log"
    text = log.read_text(errors="replace") if log.exists() else ""
    for rank, code in _FAILED_RANK.findall(text):
        if int(code) < 0 and -int(code) != signal.SIGTERM:
            return int(rank), signal.Signals(-int(code)).name
    return None


def _unknown(run: RunDir, attempt: AttemptRecord, found: str) -> ExitRecord:
    rows = [row for row in run.metrics() if row["attempt"] == attempt.number]
    return ExitRecord(
        reason=ExitReason.KILLED,
        step=int(rows[-1]["step"]) if rows else attempt.resumed_from_step,
        rank=-1,
        host=attempt.host,
        message=found,
        time_s=time.time(),
    )
