import json
import os
import signal
import urllib.request
from pathlib import Path

import mlflow
import pytest

from infra.errors import StayerError
from infra.serve import Services, mlflow_server, prefect_api
from infra.serve.service import Record

USER = str(Path(__file__).with_name("service_user.py"))


def _get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return response.read().decode()


def test_two_users_share_a_prefect_server_that_survives_the_killed_one_and_goes_with_the_last(tmp_path, python):
    first = python(USER, "prefect", str(tmp_path / "services"))
    record = Record.model_validate_json(first.stdout.readline())
    with prefect_api(tmp_path) as url:
        assert url == f"{record.url}/api"
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert _get(f"{url}/health") == "true"
        assert "<html" in _get(record.url)
        assert (tmp_path / "prefect" / "prefect.db").exists()
    assert not record.is_alive()


def test_the_mlflow_server_shows_runs_and_artifacts_that_were_written_without_it(tmp_path):
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.create_experiment("quickstart", artifact_location=(tmp_path / "mlartifacts").as_uri())
    run = client.create_run(experiment).info.run_id
    client.log_metric(run, "loss", 2.5, step=7)
    client.log_text(run, "hello from the artifact", "report/report.html")
    with mlflow_server(tmp_path) as url:
        page = f"{url}/ajax-api/2.0/mlflow"
        points = json.loads(_get(f"{page}/metrics/get-history?run_id={run}&metric_key=loss"))["metrics"]
        assert [(p["value"], p["step"]) for p in points] == [(2.5, 7)]
        listed = json.loads(_get(f"{page}/artifacts/list?run_id={run}&path=report"))["files"]
        assert [f["path"] for f in listed] == ["report/report.html"]
        assert _get(f"{url}/get-artifact?run_uuid={run}&path=report/report.html") == "hello from the artifact"
        client.log_metric(run, "loss", 2.0, step=8)  # the file stays open to other writers
        points = json.loads(_get(f"{page}/metrics/get-history?run_id={run}&metric_key=loss"))["metrics"]
        assert len(points) == 2


UP = """
import json, sys
from pathlib import Path
from infra.serve import up
with up(Path(sys.argv[1])) as services:
    print(json.dumps([services.prefect_api_url, services.prefect_url, services.mlflow_url]), flush=True)
    services.wait()
    print("stopping", flush=True)
print("stopped", flush=True)
"""


def test_all_services_come_up_together_and_go_at_a_stop_signal(tmp_path, python):
    command = python("-c", UP, str(tmp_path))
    api_url, prefect_url, mlflow_url = json.loads(command.stdout.readline())
    assert _get(f"{api_url}/health") == "true"
    assert json.loads(_get(f"{api_url}/work_pools/stayer"))["type"] == "process"
    assert _get(f"{mlflow_url}/health") == "OK"
    assert "<html" in _get(prefect_url)
    records = [Record.model_validate_json(file.read_text()) for file in (tmp_path / "services").glob("*.json")]
    assert len(records) == 3

    command.send_signal(signal.SIGTERM)
    assert command.stdout.readline() == "stopping\n"
    command.send_signal(signal.SIGINT)  # an impatient second signal does not cut the stopping short
    assert command.stdout.read() == "stopped\n"
    assert command.wait() == 0
    assert not any(record.is_alive() for record in records)


def test_the_death_of_a_service_is_told_by_name(tmp_path):
    dead = Record(pid=os.getpid(), create_time_s=-1, port=1)  # this process started later
    services = Services("", "", "", logs={"worker": tmp_path / "worker.log"}, records={"worker": dead})
    with pytest.raises(StayerError, match="the worker service died") as error:
        services.wait()
    assert str(tmp_path / "worker.log") in error.value.hint
