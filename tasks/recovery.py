"""From the way an attempt ended to what is done about it."""

from enum import StrEnum
from itertools import takewhile

from pydantic import BaseModel

from tasks.config import RecoveryConfig
from training.exits import ExitReason, ExitRecord
from training.rundir import RunDir


class Action(StrEnum):
    """What the run does after an attempt."""

    FINISH = "finish"
    RESTART = "restart"
    STOP = "stop"


class Decision(BaseModel, frozen=True):
    """An action and why it was taken."""

    action: Action
    why: str
    wait_s: float = 0.0
    on_request: bool = False
    """Whether somebody asked for the stop."""


_PERMANENT = {
    ExitReason.CONFIG_ERROR: "the configuration is wrong",
    ExitReason.DATA_ERROR: "the data is wrong",
    ExitReason.DIVERGED: "the loss diverged",
}
"""Ends that a restart would only repeat."""


def decide(run: RunDir, config: RecoveryConfig) -> Decision:
    """Choose what follows the newest attempt, from how it and those before it ended.

    Permanent failures and an error of the code before any step was done stop the run; so do
    `same_step_limit` failures in a row at one step and more than `max_restarts` failures. Everything else
    is restarted, after a wait that doubles as long as no step is gained.
    """
    ends = [record for attempt in run.attempts() if (record := run.exit_record(attempt.number)) is not None]
    last = ends[-1]
    if last.reason is ExitReason.COMPLETED:
        return Decision(action=Action.FINISH, why="all steps are done")
    if last.reason is ExitReason.PREEMPTED and _was_asked_to_stop(run):
        return Decision(action=Action.STOP, why=f"stopped on request after step {last.step}", on_request=True)
    if last.reason is ExitReason.PREEMPTED:  # a signal from outside, such as a machine taken away: nobody here asked
        why = f"attempt {len(ends)} was told by a signal to stop after step {last.step}"
        return Decision(action=Action.RESTART, why=why, wait_s=config.backoff_s)
    told = f"attempt {len(ends)} ended at step {last.step}: {last.reason}" + (
        f", {last.message}" if last.message else ""
    )
    if last.reason in _PERMANENT:
        return Decision(action=Action.STOP, why=f"{told}; {_PERMANENT[last.reason]}, a restart would repeat it")
    if last.reason is ExitReason.INTERNAL_ERROR and last.step == 0:
        return Decision(action=Action.STOP, why=f"{told}; it failed before the first step, a restart would repeat it")
    failures = _failures_since_hand(run, ends)
    in_a_row = len(list(takewhile(lambda e: e.step == last.step, reversed(failures))))
    if in_a_row >= config.same_step_limit:
        return Decision(action=Action.STOP, why=f"{told}; {in_a_row} failures in a row at this step")
    if len(failures) > config.max_restarts:
        return Decision(action=Action.STOP, why=f"{told}; {config.max_restarts} restarts are used up")
    wait_s = min(config.backoff_s * 2 ** (in_a_row - 1), config.max_backoff_s)
    return Decision(action=Action.RESTART, why=told, wait_s=wait_s)


def _was_asked_to_stop(run: RunDir) -> bool:
    newest = run.attempts()[-1].number
    return run.stop_file.exists() or any(e["attempt"] == newest for e in run.events("stop_requested"))


def _failures_since_hand(run: RunDir, ends: list[ExitRecord]) -> list[ExitRecord]:
    """Failures after a person last started or resumed the run: their act renews the budget."""
    by_hand = [event["time_s"] for event in run.events("campaign_started") if event["by_hand"]]
    since = max(by_hand, default=0.0)
    return [e for e in ends if e.time_s >= since and e.reason not in (ExitReason.PREEMPTED, ExitReason.COMPLETED)]
