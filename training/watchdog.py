"""Signs of life outwards (heartbeat files), and an end when the parent is gone."""

import contextlib
import os
import threading
import time

from training.exits import EXIT_CODES, ExitReason
from training.rundir import Heartbeat, RunDir

_BEAT_INTERVAL_S = 1.0
_PARENT_POLL_S = 0.5


class Pulse:
    """Writes this rank's heartbeat: at every change of phase, else at most once a second."""

    def __init__(self, run: RunDir, rank: int) -> None:
        self._file, self._rank = run.heartbeat(rank), rank
        self._phase, self._written_s = "", 0.0
        self._file.parent.mkdir(parents=True, exist_ok=True)

    def beat(self, step: int, phase: str) -> None:
        """Tell that `step` steps are done and `phase` is going on. A full disk is no reason to die: it is ignored."""
        now = time.monotonic()
        if phase == self._phase and now - self._written_s < _BEAT_INTERVAL_S:
            return
        self._phase, self._written_s = phase, now
        beat = Heartbeat(rank=self._rank, pid=os.getpid(), step=step, phase=phase, monotonic_s=now, time_s=time.time())
        temporary = self._file.with_name(f".{self._file.name}.tmp")
        try:
            temporary.write_text(beat.model_dump_json())
            temporary.replace(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.utime(self._file)  # needs no space, and is a sign of life too


def end_with_parent() -> None:
    """End this process soon after its parent is gone.

    A torchrun agent killed by SIGKILL leaves its workers behind, and they would go on training and writing.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os._exit(EXIT_CODES[ExitReason.KILLED])

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
