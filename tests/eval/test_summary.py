import json

import pytest

from eval.summary import summarize
from infra import storage
from training.exits import ExitReason, ExitRecord
from training.rundir import AttemptRecord, Inputs, RunDir


def event(run, kind, time_s, **fields):
    storage.append_json_line(run.events_file, {"event": kind, "time_s": time_s, **fields})


def attempt(run, number, started_s, ended_s, reason):
    record = AttemptRecord(
        number=number,
        mark="m",
        host="h",
        pid=1,
        create_time_s=0,
        world_size=2,
        resumed_from_step=0,
        started_s=started_s,
    )
    run.attempt(number).mkdir(parents=True)
    storage.write_json(str(run.attempt(number) / "attempt.json"), record.model_dump())
    end = ExitRecord(reason=reason, step=10, rank=0, host="h", time_s=ended_s)
    storage.write_json(str(run.attempt(number) / "exit.json"), end.model_dump(mode="json"))


@pytest.fixture
def run(tmp_path):
    """Prepared 10 to 30, trained 30 to 70 and 80 to 120, evaluated 60 to 90; at work from 0 to 130."""
    run = RunDir(tmp_path / "runs" / "small-1")
    run.path.mkdir(parents=True)
    event(run, "campaign_started", 5.0, process_started_s=0.0)
    event(run, "stage_finished", 30.0, stage="tokenize", started_s=10.0)
    event(run, "stage_finished", 90.0, stage="evaluate", started_s=60.0)
    attempt(run, 1, 30.0, 70.0, ExitReason.KILLED)
    attempt(run, 2, 80.0, 120.0, ExitReason.COMPLETED)
    with run.metrics_file.open("w") as file:
        for step in range(1, 21):
            row = {"step": step, "loss": 21.0 - step, "tokens": 10 * step, "tokens_per_s": float(step)}
            file.write(json.dumps(row) + "\n")
    return run


def test_overlapping_stages_count_once_and_the_rest_is_orchestration(run):
    event(run, "campaign_finished", 130.0, outcome="completed")
    summary = summarize(run)
    assert summary.stage_seconds == {"tokenize": 20.0, "evaluate": 30.0, "train": 80.0}
    assert (summary.elapsed_s, summary.orchestration_s) == (130.0, 20.0)
    assert (summary.loss_start, summary.loss_end, summary.tokens) == (19.5, 1.5, 200)
    assert (summary.outcome, summary.attempts) == ("completed", 2)


def test_a_run_that_was_resumed_is_running_whatever_its_last_end_was(run):
    event(run, "campaign_finished", 130.0, outcome="stopped")
    event(run, "campaign_started", 200.0, process_started_s=199.0)
    assert summarize(run).outcome == "running"


def test_work_while_no_campaign_watched_is_not_taken_from_its_time(run):
    event(run, "campaign_finished", 50.0, outcome="failed")
    event(run, "campaign_started", 100.0, process_started_s=100.0)
    event(run, "campaign_finished", 125.0, outcome="completed")
    summary = summarize(run)
    assert summary.elapsed_s == 75.0
    assert summary.orchestration_s == pytest.approx(75.0 - 20.0 - 20.0 - 20.0)


def test_the_base_models_work_is_work(run, tmp_path):
    base = RunDir(tmp_path / "runs" / "base-1")
    (base.path / "model").mkdir(parents=True)
    base.job_file.write_text("name: base\n")
    event(base, "stage_finished", 9.0, stage="tokenize", started_s=6.0)
    run.write_inputs(Inputs(dataset="d", dataset_id="i", model=str(base.path / "model"), tokenizer="t", job_hash="h"))
    event(run, "campaign_finished", 130.0, outcome="completed")
    summary = summarize(run)
    assert summary.stage_seconds["base model"] == 3.0
    assert summary.orchestration_s == 17.0
