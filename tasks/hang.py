"""Telling an attempt that hangs from one that is slow."""

import contextlib
import signal
import statistics
import time
from pathlib import Path

import psutil

from infra.launch import processes
from tasks.config import RecoveryConfig
from training.rundir import AttemptRecord, RunDir

_RECENT_STEPS = 50
_DUMP_S = 2.0


class HangDetector:
    """Watches the heartbeats of an attempt.

    While training, no rank finishing a step within max(factor x median step time, floor) is a hang. Starting,
    loading and saving have a limit of their own: they may take long and show no steps.
    """

    def __init__(self, run: RunDir, recovery: RecoveryConfig) -> None:
        self._run, self._recovery = run, recovery
        self._seen: object = None
        self._since_s = time.monotonic()
        self.limit_s = recovery.hang_floor_s

    def hangs(self) -> bool:
        """Look once; `limit_s` tells the limit that was exceeded."""
        beats = self._run.heartbeats()
        signs = [(beat, _mtime_ns(self._run.heartbeat(beat.rank))) for beat in beats]
        now = time.monotonic()
        if signs != self._seen:
            self._seen, self._since_s = signs, now
            return False
        if now - self._since_s <= self._recovery.hang_floor_s:
            return False
        trains = bool(beats) and all(beat.phase == "training" for beat in beats)
        self.limit_s = self._step_limit_s() if trains else self._recovery.start_limit_s
        return now - self._since_s > self.limit_s

    def _step_limit_s(self) -> float:
        steps = [row["step_s"] for row in self._run.metrics()[-_RECENT_STEPS:]]
        median_s = statistics.median(steps) if steps else 0.0
        return max(self._recovery.hang_factor * median_s, self._recovery.hang_floor_s)


def _mtime_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def dump_stacks(run: RunDir, attempt: AttemptRecord) -> None:
    """Have every rank of this machine write the stacks of its threads into its log."""
    ranks = {beat.pid for beat in run.heartbeats()}
    for process in processes.marked(attempt.mark):
        if process.pid in ranks:  # an old heartbeat's pid may be anybody's by now
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGUSR1)
    time.sleep(_DUMP_S)
    run.record_event("stacks_dumped", attempt=attempt.number, folder=str(run.attempt(attempt.number)))
