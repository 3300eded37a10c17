"""What the run is doing right now, for whoever watches this process, and how long each part took, for everybody."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from training.rundir import RunDir


@dataclass(frozen=True)
class Stage:
    """One part of the work in progress."""

    name: str
    run: RunDir | None = None
    done: int = 0
    total: int | None = None
    unit: str = ""
    started_s: float = field(default_factory=time.time)


class Board:
    """The stages this process is in, outermost first. Safe to update from task threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stages: list[Stage] = []

    def stages(self) -> list[Stage]:
        """The stages as they are now, outermost first."""
        with self._lock:
            return list(self._stages)

    def push(self, stage: Stage) -> None:
        """Enter a stage."""
        with self._lock:
            self._stages.append(stage)

    def pop(self, name: str) -> None:
        """Leave the innermost stage of that name."""
        with self._lock:
            index = max(i for i, s in enumerate(self._stages) if s.name == name)
            del self._stages[index]

    def advance(self, name: str, amount: int = 1) -> None:
        """Count finished units of a stage."""
        with self._lock:
            self._stages = [replace(s, done=s.done + amount) if s.name == name else s for s in self._stages]


BOARD = Board()
"""The board of this process."""


@contextlib.contextmanager
def stage(
    name: str, run: RunDir | None = None, *, total: int | None = None, unit: str = "", timed: bool = True
) -> Iterator[None]:
    """Show a stage while the block runs; with a run, record in its events how long it worked.

    The event `stage_finished` holds the start as well, so that overlapping stages can be told apart later.
    A stage that is not `timed` only watches work that keeps its own time.
    """
    current = Stage(name, run, total=total, unit=unit)
    BOARD.push(current)
    try:
        yield
    finally:
        BOARD.pop(name)
        if run is not None and timed:
            run.record_event("stage_finished", stage=name, started_s=current.started_s)
