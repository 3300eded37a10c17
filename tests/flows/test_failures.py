import pytest
import yaml

from flows.failures import claim_failure, find_failure
from infra.locks import exclusive
from training.rundir import RunDir


@pytest.fixture
def crashed(tmp_path, monkeypatch):
    """A run whose campaign started in flow run `f1` and was never heard of again."""
    monkeypatch.setenv("STAYER_HOME", str(tmp_path))
    run = RunDir(tmp_path / "runs" / "small-1")
    run.path.mkdir(parents=True)
    job = {
        "name": "small",
        "model": {"path": "m"},
        "data": {"sources": [{"name": "a", "uri": "x"}]},
        "recovery": {"max_resumes": 2},
    }
    run.job_file.write_text(yaml.safe_dump(job))
    start(run, "f1")
    return run


def start(run, flow_run, *, part_of_another=False):
    run.record_event(
        "campaign_started", flow_run=flow_run, root_flow_run=flow_run, by_hand=False, part_of_another=part_of_another
    )


def test_a_crash_is_claimed_by_exactly_one(crashed):
    failure = find_failure("f1")
    assert failure.run.path == crashed.path
    assert claim_failure(failure, by="r") == ""
    assert claim_failure(failure, by="r") == "this failure was already taken care of"


def test_resumes_are_a_budget(crashed):
    for name in ("f1", "f2"):
        start(crashed, name)
        assert claim_failure(find_failure(name), by="r") == ""
    start(crashed, "f3")
    assert claim_failure(find_failure("f3"), by="r") == "its budget of 2 automatic resumes is used up"


@pytest.mark.parametrize("outcome", ["completed", "stopped"])
def test_what_ended_well_or_on_request_is_not_resumed(crashed, outcome):
    crashed.record_event("campaign_finished", outcome=outcome, permanent=False)
    assert claim_failure(find_failure("f1"), by="r") == f"it {outcome}"


def test_what_recovery_gave_up_is_not_resumed(crashed):
    crashed.record_event("campaign_finished", outcome="failed", why="the loss diverged", permanent=True)
    assert claim_failure(find_failure("f1"), by="r") == "the loss diverged"


def test_an_old_end_says_nothing_about_a_new_crash(crashed):
    crashed.record_event("campaign_finished", outcome="stopped", permanent=False)
    start(crashed, "f2")
    assert claim_failure(find_failure("f2"), by="r") == ""


def test_strangers_and_base_jobs_are_not_found(crashed):
    assert find_failure("unknown") is None
    start(crashed, "f9", part_of_another=True)
    assert find_failure("f9") is None


def test_a_campaign_that_is_still_carried_out_is_left_alone_and_the_failure_stays_unclaimed(crashed):
    with exclusive(crashed.path / "campaign.lock", what="flow run f1"):
        assert "still carrying it out (" in claim_failure(find_failure("f1"), by="r")
    assert claim_failure(find_failure("f1"), by="r") == ""


def test_a_resume_that_died_before_its_campaign_began_is_a_failure_of_that_run(crashed):
    claim_failure(find_failure("f1"), by="resume-1")
    failure = find_failure("resume-1")
    assert failure.run.path == crashed.path
    assert claim_failure(failure, by="resume-2") == ""
