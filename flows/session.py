"""One command at work with Prefect: a server to talk to, quiet logs, progress on the screen, Ctrl-C in good order."""

import contextlib
import logging
import os
import signal
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from rich.console import Console

from infra.errors import StayerError
from infra.home import home
from infra.serve import prefect_api

# Prefect reads its settings once, when it is imported: only what runs inside a session may import it.
_DELIVERY_TIMEOUT_S = 10
_QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",  # its logs stay on its pages; the screen is ours
    "PREFECT_LOGGING_HANDLERS_DEBUG_LEVEL": "CRITICAL",
    "PREFECT_CLIENT_MAX_RETRIES": "8",  # waits of 2, 4, … 256 s: a server may be away for minutes
    "DO_NOT_TRACK": "1",
}


@contextlib.contextmanager
def session(console: Console, *, quiet: bool = False) -> Iterator[None]:
    """Have a Prefect API for the block: the configured one, else Stayer's own server, started or found.

    Args:
        console: where progress goes.
        quiet: show no progress.
    """
    os.environ.update({key: value for key, value in _QUIET.items() if key not in os.environ})
    logging.raiseExceptions = False  # a log that cannot be delivered is no news for the screen
    with contextlib.ExitStack() as stack:
        if not _configured_api():
            os.environ["PREFECT_HOME"] = str(home() / "prefect")
            os.environ["PREFECT_API_URL"] = stack.enter_context(prefect_api(home()))
        stack.callback(_deliver_logs)
        if not quiet:
            from flows.display import progress

            stack.enter_context(progress(console, time.time()))
        try:
            yield
        except RuntimeError as err:
            if "Failed to reach API" not in str(err):
                raise
            hint = "start that server, or unset PREFECT_API_URL and Stayer runs one of its own"
            raise StayerError(f"Prefect: {err}", hint=hint) from err


def campaign_state(job: str, run_id: str, overrides: list[str]) -> Exception | None:
    """Run the main flow; returns the exception it ended with, if any."""
    from flows.pipeline import continued_training

    with _interrupts():
        state = continued_training(job, run_id, overrides, return_state=True)
    result = state.result(raise_on_failure=False)
    if isinstance(result, StayerError):
        return result
    return StayerError(str(result)) if isinstance(result, BaseException) else None


def _configured_api() -> bool:
    """Whether the environment or Prefect's active profile names an API."""
    if os.environ.get("PREFECT_API_URL"):
        return True
    file = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser() / "profiles.toml"
    if not file.is_file():
        return False
    profiles = tomllib.loads(file.read_text())
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    return "PREFECT_API_URL" in profiles.get("profiles", {}).get(active, {})


def _deliver_logs() -> None:
    """Hand what Prefect still holds back to its server while there is one."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=_DELIVERY_TIMEOUT_S)


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Make the first Ctrl-C (or SIGTERM) a polite stop of training and the second one an immediate end."""
    from tasks.stop import STOP

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        if STOP.is_heard and not STOP.is_set():
            STOP.set()
            sys.stderr.write("\nstopping after this step; again to kill the training at once\n")
        else:
            raise KeyboardInterrupt

    previous = {number: signal.signal(number, on_interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
