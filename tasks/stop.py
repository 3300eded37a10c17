"""A wish to stop the run in progress, from the command line's signal handler to whoever looks after the training."""

import contextlib
import threading
from collections.abc import Iterator

from infra.errors import StayerError


class StoppedError(StayerError):
    """The run was stopped on request; it can be resumed."""


class StopRequest:
    """Set once by a signal handler, honoured by the train flow at its next look."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._listening = False

    @property
    def is_heard(self) -> bool:
        """Whether somebody looks after training and will honour a request; if not, the caller is on its own."""
        return self._listening

    @contextlib.contextmanager
    def honoured(self) -> Iterator[None]:
        """Promise to look at this request until the block ends."""
        self._listening = True
        try:
            yield
        finally:
            self._listening = False

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
