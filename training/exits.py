"""Why an attempt ended. torchrun's own exit code is 1 for every failure, so the reason travels in exit.json."""

from enum import StrEnum

from pydantic import BaseModel


class ExitReason(StrEnum):
    """Every way an attempt can end."""

    COMPLETED = "completed"
    PREEMPTED = "preempted"
    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out_of_memory"
    COLLECTIVE_TIMEOUT = "collective_timeout"
    DATA_ERROR = "data_error"
    CONFIG_ERROR = "config_error"
    STORAGE_ERROR = "storage_error"
    INTERNAL_ERROR = "internal_error"
    KILLED = "killed"
    """The worker left no word: ended by a signal or with its machine. Written by whoever found it dead."""


EXIT_CODES: dict[ExitReason, int] = {
    ExitReason.COMPLETED: 0,
    ExitReason.PREEMPTED: 10,
    ExitReason.DIVERGED: 11,
    ExitReason.OUT_OF_MEMORY: 12,
    ExitReason.COLLECTIVE_TIMEOUT: 13,
    ExitReason.DATA_ERROR: 14,
    ExitReason.CONFIG_ERROR: 15,
    ExitReason.STORAGE_ERROR: 16,
    ExitReason.INTERNAL_ERROR: 17,
    ExitReason.KILLED: 18,
}
"""Exit code of a worker process for each reason."""


class ExitRecord(BaseModel):
    """`attempts/<n>/exit.json`: written once, by the first rank that knows why the attempt ends."""

    reason: ExitReason
    step: int
    """Last completed optimizer step."""
    rank: int
    host: str
    message: str = ""
    """One line for people."""
    exception: str | None = None
    """Traceback, if there was one."""
    time_s: float
    """Wall clock, seconds since the epoch."""
