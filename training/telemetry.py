"""What rank 0 writes down while training: metrics, the ledger of consumed sequences, and events."""

import logging
import resource
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from infra import storage
from training.rundir import RunDir

log = logging.getLogger(__name__)

_BACKLOG_LINES = 100_000


@dataclass
class StepTimes:
    """Where the seconds of one step went, on rank 0; what is missing from the step's total is bookkeeping."""

    input_wait_s: float = 0.0
    """Waiting for the next batch."""
    compute_s: float = 0.0
    """Forward, backward (with the gathers and reductions inside) and optimizer."""
    comm_wait_s: float = 0.0
    """Waiting for the slowest rank at the end of the step."""
    checkpoint_stall_s: float = 0.0
    """Training held up by a save."""

    def rounded(self) -> dict[str, float]:
        """The values by name, in microseconds resolution."""
        return {name: round(value, 6) for name, value in vars(self).items()}


class Recorder:
    """Appends to the run directory on rank 0 and does nothing on the others.

    A disk that refuses (full, or gone for a while) never stops training: lines wait in memory and are written, in
    order, as soon as there is room again.
    """

    def __init__(self, run: RunDir, *, enabled: bool) -> None:
        self._run, self._enabled = run, enabled
        self._ledger_file = run.path / "ledger.jsonl"
        self._backlog: deque[tuple[Path, dict[str, Any]]] = deque(maxlen=_BACKLOG_LINES)

    def metrics(self, row: dict[str, Any]) -> None:
        """Append the row of one step to metrics.jsonl."""
        self._append(self._run.metrics_file, row)

    def ledger(self, *, step: int, position: int, rows: int, head: str) -> None:
        """Append what one step consumed: `rows` sequences up to `position`, and the hash over all so far."""
        self._append(self._ledger_file, {"step": step, "position": position, "rows": rows, "head": head})

    def event(self, kind: str, **fields: Any) -> None:
        """Record an event; unlike the lines above it is told even if only in the log."""
        if not self._enabled:
            return
        try:
            self._run.record_event(kind, **fields)
        except OSError as err:
            log.warning("event %s %s could not be written: %s", kind, fields, err)

    def _append(self, file: Path, row: dict[str, Any]) -> None:
        if not self._enabled:
            return
        self._backlog.append((file, row))
        try:
            while self._backlog:
                storage.append_json_line(*self._backlog[0])
                self._backlog.popleft()
        except OSError as err:
            log.warning("%d lines wait for the disk: %s", len(self._backlog), err)


def peak_memory_gib() -> float:
    """Most memory this process has held: on the device with CUDA, else resident in host memory."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
