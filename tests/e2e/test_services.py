import os
import signal
import subprocess
import sys

import httpx
import pytest
from campaigns import no_processes_left, reached, services, until


@pytest.fixture(scope="module")
def deployed(prepared):
    """A home with the services up and everything deployed; yields it with the two addresses."""
    stayer = prepared("deployed")
    # Long enough to lose its flow in the middle.
    stayer.write_jobs(training={"total_tokens": 400 * 1024}, checkpoint={"interval_steps": 200})
    with services(stayer) as (prefect_url, mlflow_url):
        stayer.env["PREFECT_API_URL"] = f"{prefect_url}/api"
        stayer.deployed = stayer.json("deploy")
        yield stayer, prefect_url, mlflow_url


def prefect(stayer, *arguments):
    command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
    done = subprocess.run(command, env=stayer.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def flow_runs(url, flow):
    """The runs of a flow that have started, newest last."""
    started = {"start_time": {"is_null_": False}}
    body = {"flows": {"name": {"any_": [flow]}}, "flow_runs": started, "sort": "START_TIME_ASC"}
    return httpx.post(f"{url}/api/flow_runs/filter", json=body).json()


def test_deployments_carry_their_schedules_and_time_zone(deployed):
    _, url, _ = deployed
    found = {d["name"]: d for d in httpx.post(f"{url}/api/deployments/filter", json={}).json()}
    assert sorted(found) == ["campaign", "nightly", "on-demand", "on-failure", "periodic"]
    (nightly,) = found["nightly"]["schedules"]
    assert (nightly["schedule"]["cron"], nightly["schedule"]["timezone"]) == ("0 3 * * *", "Europe/Berlin")
    assert found["periodic"]["schedules"][0]["schedule"]["interval"] == 900


def test_deploying_again_changes_nothing(deployed):
    stayer, url, _ = deployed
    assert stayer.json("deploy") == stayer.deployed
    automations = httpx.post(f"{url}/api/automations/filter", json={}).json()
    assert [a["name"] for a in automations] == ["stayer: resume a failed campaign"]


def test_a_campaign_whose_flow_is_killed_trains_on_and_is_resumed_once(deployed):
    stayer, url, _ = deployed
    prefect(stayer, "deployment", "run", "continued-training/campaign", "--param", f"job={stayer.home / 'small.yaml'}")
    run = until(reached(stayer, "small", 10))
    campaign = run.events("campaign_started")[-1]
    os.kill(campaign["pid"], signal.SIGKILL)
    until(lambda: run.events("attempt_attached"))
    until(lambda: run.events("campaign_finished"))
    assert run.events("campaign_finished")[-1]["outcome"] == "completed"
    assert [a.number for a in run.attempts()] == [1], "a second trainer was started"
    assert [row["step"] for row in run.metrics()] == list(range(1, 401))
    assert len(run.events("resume_claimed")) == 1
    assert no_processes_left(run)
    (resumed,) = flow_runs(url, "resume")
    until(lambda: flow_runs(url, "resume")[0]["state_type"] == "COMPLETED")
    assert resumed["parameters"]["failed_run"] == f"prefect.flow-run.{campaign['flow_run']}"


def test_a_failure_that_was_taken_care_of_is_not_resumed_again(deployed):
    stayer, _, _ = deployed
    run = reached(stayer, "small", 400)()
    failed = run.events("resume_claimed")[0]["flow_run"]
    started = len(run.events("campaign_started"))
    arguments = ["--param", f"failed_run=prefect.flow-run.{failed}"]
    prefect(stayer, "deployment", "run", "resume/on-failure", *arguments, "--watch")
    assert len(run.events("campaign_started")) == started


def test_evaluation_and_publishing_run_from_their_deployments(deployed):
    stayer, url, _ = deployed
    run = reached(stayer, "small", 400)()
    arguments = ["--param", f"run={run.run_id}"]
    prefect(stayer, "deployment", "run", "evaluate-checkpoint/on-demand", *arguments, "--watch")
    prefect(stayer, "deployment", "run", "publish-checkpoints/periodic", "--watch")
    prefect(
        stayer, "deployment", "run", "prepare-data/nightly", "--param", f"job={stayer.home / 'small.yaml'}", "--watch"
    )
    for flow in ("evaluate-checkpoint", "publish-checkpoints", "prepare-data"):
        assert flow_runs(url, flow)[-1]["state_type"] == "COMPLETED"
