import pytest

from tasks.config import RecoveryConfig
from tasks.recovery import Action, decide
from training.exits import ExitReason

CONFIG = RecoveryConfig(max_restarts=4, same_step_limit=3, backoff_s=5, max_backoff_s=12)


def test_a_finished_attempt_finishes_the_run(run, add_attempt):
    add_attempt(ExitReason.COMPLETED, 100)
    assert decide(run, CONFIG).action is Action.FINISH


@pytest.mark.parametrize("how", ["event", "file"])
def test_a_stop_on_request_stops_and_says_where(run, add_attempt, how):
    add_attempt(ExitReason.PREEMPTED, 40)
    if how == "event":
        run.record_event("stop_requested", attempt=1)
    else:
        run.stop_file.touch()
    decision = decide(run, CONFIG)
    assert (decision.action, decision.why) == (Action.STOP, "stopped on request after step 40")


def test_a_signal_that_nobody_here_sent_is_no_request(run, add_attempt):
    add_attempt(ExitReason.PREEMPTED, 40)
    run.record_event("stop_requested", attempt=1)
    add_attempt(ExitReason.PREEMPTED, 50)
    assert decide(run, CONFIG).action is Action.RESTART


@pytest.mark.parametrize("reason", [ExitReason.CONFIG_ERROR, ExitReason.DATA_ERROR, ExitReason.DIVERGED])
def test_what_a_restart_would_repeat_is_not_restarted(run, add_attempt, reason):
    add_attempt(reason, 40)
    assert decide(run, CONFIG).action is Action.STOP


def test_an_error_before_the_first_step_is_not_restarted_and_a_later_one_is(run, add_attempt):
    add_attempt(ExitReason.INTERNAL_ERROR, 0, message="ZeroDivisionError: division by zero")
    decision = decide(run, CONFIG)
    assert decision.action is Action.STOP
    assert "ZeroDivisionError" in decision.why
    add_attempt(ExitReason.INTERNAL_ERROR, 5)
    assert decide(run, CONFIG).action is Action.RESTART


@pytest.mark.parametrize(
    "reason",
    [ExitReason.KILLED, ExitReason.OUT_OF_MEMORY, ExitReason.COLLECTIVE_TIMEOUT, ExitReason.STORAGE_ERROR],
)
def test_what_may_pass_is_restarted(run, add_attempt, reason):
    add_attempt(reason, 40)
    assert decide(run, CONFIG).action is Action.RESTART


def test_the_wait_doubles_without_progress_up_to_its_limit_and_starts_anew_with_it(run, add_attempt):
    config = CONFIG.model_copy(update={"same_step_limit": 10, "max_restarts": 10})
    waits = []
    for step in (7, 7, 7, 8):
        add_attempt(ExitReason.KILLED, step)
        waits.append(decide(run, config).wait_s)
    assert waits == [5, 10, 12, 5]


def test_the_same_step_failing_again_and_again_is_a_crash_loop(run, add_attempt):
    for _ in range(2):
        add_attempt(ExitReason.KILLED, 7)
        assert decide(run, CONFIG).action is Action.RESTART
    add_attempt(ExitReason.KILLED, 7)
    decision = decide(run, CONFIG)
    assert decision.action is Action.STOP
    assert "3 failures in a row at this step" in decision.why


def test_restarts_are_a_budget_that_a_person_renews(run, add_attempt):
    for step in range(1, 6):
        add_attempt(ExitReason.KILLED, step, time_s=100.0 + step)
    assert decide(run, CONFIG).action is Action.STOP
    storage_time = 105.5
    run.record_event("campaign_started", by_hand=True, time_s=storage_time)
    add_attempt(ExitReason.KILLED, 6, time_s=106.0)
    assert decide(run, CONFIG).action is Action.RESTART


def test_an_automatic_resume_renews_no_budget(run, add_attempt):
    for step in range(1, 6):
        add_attempt(ExitReason.KILLED, step, time_s=100.0 + step)
    run.record_event("campaign_started", by_hand=False, time_s=105.5)
    add_attempt(ExitReason.KILLED, 6, time_s=106.0)
    assert decide(run, CONFIG).action is Action.STOP
