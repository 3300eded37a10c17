import socket

import mlflow
import pytest

from infra import storage
from tasks.config import TrackingConfig
from tasks.tracking import Tracking
from training.exits import ExitReason


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """One SQLite store for the module: creating its tables takes seconds."""
    return tmp_path_factory.mktemp("tracking")


@pytest.fixture
def tracking(run, store, request):
    return Tracking(run, TrackingConfig(experiment=request.node.name), home=store, job_name="small")


def children(tracking, client, request):
    experiment = client.get_experiment_by_name(request.node.name).experiment_id
    runs = client.search_runs([experiment])
    return {r.info.run_name: r for r in runs}


@pytest.fixture
def client(store):
    return mlflow.MlflowClient(f"sqlite:///{store}/mlflow.db")


def test_each_step_is_one_point_however_often_it_is_synced_or_run_again(run, tracking, client, log_steps, request):
    log_steps(1, 20)
    assert tracking.sync()
    log_steps(16, 30, attempt=2)  # a resume from step 15 runs five steps again
    assert tracking.sync()
    assert tracking.sync()
    parent = children(tracking, client, request)[run.run_id]
    history = client.get_metric_history(parent.info.run_id, "loss")
    assert [(p.step, p.value) for p in history] == [(s, 10.0 / s) for s in range(1, 31)]


def test_a_crash_between_sending_and_noting_doubles_nothing(run, tracking, client, log_steps, add_attempt, request):
    log_steps(1, 5)
    add_attempt(ExitReason.KILLED, 5)
    assert tracking.sync()
    (run.path / "tracking.json").unlink()
    assert tracking.sync()
    runs = children(tracking, client, request)
    assert sorted(runs) == ["attempt-0001", run.run_id]
    assert len(client.get_metric_history(runs[run.run_id].info.run_id, "loss")) == 5


def test_params_attempts_and_evaluations_are_there(run, tracking, client, log_steps, add_attempt, request):
    log_steps(1, 3)
    add_attempt(ExitReason.KILLED, 3, message="rank 1 was ended by SIGKILL")
    scores = {"step": 3, "perplexity": {"domain": 12.5, "general": 20.0}, "time_s": 50.0}
    storage.write_json(str(run.evaluation(3)), scores)
    assert tracking.sync()
    runs = children(tracking, client, request)
    parent = runs[run.run_id]
    assert parent.data.params["training.learning_rate"] == "0.0001"
    assert parent.data.metrics["perplexity/domain"] == 12.5
    attempt = runs["attempt-0001"]
    assert attempt.data.tags["exit_reason"] == "killed"
    assert attempt.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert attempt.info.status == "FAILED"
    assert runs["evaluation-step-00000003"].data.metrics["perplexity/general"] == 20.0


def test_a_deleted_run_is_replaced_by_one_that_names_it(run, tracking, client, log_steps, request):
    log_steps(1, 3)
    assert tracking.sync()
    first = children(tracking, client, request)[run.run_id].info.run_id
    client.delete_run(first)
    assert tracking.sync()
    second = children(tracking, client, request)[run.run_id]
    assert second.info.run_id != first
    assert second.data.tags["stayer.replaces"] == first
    assert len(client.get_metric_history(second.info.run_id, "loss")) == 3


def test_the_final_model_is_registered_once_under_its_alias(run, tracking, client, log_steps, request):
    log_steps(1, 3)
    run.model.mkdir()
    (run.model / "config.json").write_text("{}")
    assert tracking.sync()
    (run.path / "tracking.json").unlink()
    assert tracking.sync()
    versions = client.search_model_versions("name = 'small'")
    mine = [v for v in versions if v.tags["stayer.run"] == run.run_id and v.source == run.model.as_uri()]
    assert len(mine) == 1
    assert client.get_model_version_by_alias("small", "final").source == run.model.as_uri()


def test_an_outage_raises_nothing_is_told_once_and_is_made_good(run, store, client, log_steps, request):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{probe.getsockname()[1]}"
    log_steps(1, 4)
    down = Tracking(run, TrackingConfig(uri=dead), home=store, job_name="small")
    assert not down.sync()
    assert not down.sync(force=True)
    assert len(run.events("tracking_failed")) == 1
    back = Tracking(run, TrackingConfig(experiment=request.node.name), home=store, job_name="small")
    assert back.sync()
    parent = children(back, client, request)[run.run_id]
    assert len(client.get_metric_history(parent.info.run_id, "loss")) == 4
