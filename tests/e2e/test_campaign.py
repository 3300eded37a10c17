import hashlib
import os
import shutil
import signal

import mlflow
from campaigns import Stayer, finish, no_processes_left, rank_pid, reached, until
from transformers import AutoModelForCausalLM, AutoTokenizer

from infra import storage


def weights(run):
    return hashlib.sha256((run.model / "model.safetensors").read_bytes()).hexdigest()


def losses(run):
    return [(row["step"], row["loss"]) for row in run.metrics()]


def test_the_model_learns_the_domain_and_the_report_shows_what_it_forgets(undisturbed):
    summary = undisturbed.json("status", undisturbed.run_of("small").run_id)
    assert summary["outcome"] == "completed"
    assert summary["steps"] == 60
    assert summary["loss_end"] < summary["loss_start"] - 0.3
    scores = {int(step): by for step, by in summary["perplexity"].items()}
    assert sorted(scores) == [0, 30, 60]
    assert scores[60]["domain"] < 0.8 * scores[0]["domain"]
    assert scores[60]["general"] != scores[0]["general"]
    report = (undisturbed.run_of("small").path / "report.html").read_text()
    assert "Perplexity per checkpoint" in report
    assert f"{scores[60]['domain']:.3f}" in report


def test_the_screen_is_ours(undisturbed):
    done = undisturbed.first_output
    for foreign in ("Traceback", "WARNING", "INFO", "prefect.", "Warning:", "alembic"):
        assert foreign not in done.stderr + done.stdout
    assert "checkpoint of step 30 committed" in done.stderr
    assert "domain perplexity" in done.stdout


def test_the_final_model_loads_in_transformers(undisturbed):
    run = undisturbed.run_of("small")
    model = AutoModelForCausalLM.from_pretrained(run.model)
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    assert model.config.model_type == "qwen3"
    assert tokenizer.decode(tokenizer("import os")["input_ids"]) == "import os"


def test_everything_is_in_the_tracker_once(undisturbed):
    run = undisturbed.run_of("small")
    client = mlflow.MlflowClient(f"sqlite:///{undisturbed.home}/.stayer/mlflow.db")
    experiment = client.get_experiment_by_name("small").experiment_id
    found = {r.info.run_name: r for r in client.search_runs([experiment])}
    evaluations = [f"evaluation-step-{step:08d}" for step in (0, 30, 60)]
    assert sorted(found) == sorted([run.run_id, "prepare", "attempt-0001", *evaluations])
    parent = found[run.run_id]
    assert {r.data.tags["mlflow.parentRunId"] for name, r in found.items() if name != run.run_id} == {
        parent.info.run_id
    }
    history = client.get_metric_history(parent.info.run_id, "loss")
    assert [(p.step, p.value) for p in history] == losses(run)
    names = {a.path for a in client.list_artifacts(parent.info.run_id)}
    assert {"job.yaml", "manifest.json", "report.html"} <= names
    assert parent.inputs.dataset_inputs[0].dataset.digest == run.inputs().dataset_id[:32]
    final = client.get_model_version_by_alias("small", "final")
    assert (final.run_id, final.source) == (parent.info.run_id, run.model.as_uri())


def test_a_second_run_of_the_job_does_nothing_twice(undisturbed):
    run = undisturbed.run_of("small")
    watched = [run.metrics_file, run.model / "model.safetensors", *run.evaluations.glob("*.json")]
    watched += list((undisturbed.home / ".stayer" / "datasets").rglob("*.arrow"))
    before = {file: (file.stat().st_mtime_ns, file.stat().st_atime_ns) for file in watched}
    done = undisturbed.call("run", str(undisturbed.home / "small.yaml"))
    assert done.returncode == 0, done.stderr
    assert {file: file.stat().st_mtime_ns for file in watched} == {file: times[0] for file, times in before.items()}
    assert len(run.attempts()) == 1


def test_a_killed_rank_agent_and_server_cost_nothing_but_time(undisturbed, prepared):
    stayer = prepared("killed")
    process = stayer.start("run", str(stayer.home / "small.yaml"))
    run = until(reached(stayer, "small", 37), process=process)
    os.kill(rank_pid(run, 1), signal.SIGKILL)
    until(lambda: len(run.attempts()) == 2 and run.metrics()[-1]["attempt"] == 2, process=process)
    os.kill(run.attempts()[1].pid, signal.SIGKILL)  # the agent: its ranks must not take its end for a wish to stop
    server = storage.read_json(str(stayer.home / ".stayer" / "services" / "prefect.json"))
    os.kill(server["pid"], signal.SIGKILL)
    done = finish(process)
    assert done.returncode == 0, done.stderr
    ends = [run.exit_record(attempt.number) for attempt in run.attempts()]
    assert [end.reason for end in ends] == ["killed", "killed", "completed"]
    assert ends[0].message == "rank 1 was ended by SIGKILL"
    assert [e["step"] for e in run.events("resumed")] == [30, 30]
    assert run.events("stop_requested") == []
    assert no_processes_left(run)
    reference = undisturbed.run_of("small")
    assert losses(run) == losses(reference)
    assert weights(run) == weights(reference)


def test_ctrl_c_stops_with_a_checkpoint_and_resume_goes_on_from_it(undisturbed, prepared):
    stayer = prepared("interrupted")
    process = stayer.start("run", str(stayer.home / "small.yaml"))
    run = until(reached(stayer, "small", 5), process=process)
    process.send_signal(signal.SIGINT)
    done = finish(process)
    assert done.returncode == 130
    stopped_at = run.exit_record(1).step
    assert f"go on with: stayer resume {run.run_id}" in done.stderr
    assert run.exit_record(1).reason == "preempted"
    assert storage.read_json(str(run.checkpoint(stopped_at) / "manifest.json"))["step"] == stopped_at
    assert no_processes_left(run)
    assert stayer.call("resume", run.run_id).returncode == 0
    assert run.attempts()[1].resumed_from_step == stopped_at
    reference = undisturbed.run_of("small")
    assert losses(run) == losses(reference)
    assert weights(run) == weights(reference)


def test_a_last_checkpoint_that_is_damaged_is_trained_again(undisturbed, tmp_path):
    stayer = Stayer(tmp_path / "home")
    shutil.copytree(undisturbed.home, stayer.home)
    run = stayer.run_of("small")
    shutil.rmtree(run.model)  # as if the flow had died before the export
    part = next(run.checkpoint(60).glob("*.distcp"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    done = stayer.call("run", str(stayer.home / "small.yaml"), "--run-id", run.run_id)
    assert done.returncode == 0, done.stderr
    assert run.attempts()[-1].number == 2
    assert weights(run) == weights(undisturbed.run_of("small"))


def test_an_error_before_the_campaign_begins_is_not_hidden_behind_an_earlier_end(undisturbed, tmp_path):
    stayer = Stayer(tmp_path / "home")
    shutil.copytree(undisturbed.home, stayer.home)
    run = stayer.run_of("small")
    run.job_file.write_text("")
    done = stayer.call("resume", run.run_id)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert "completed" not in done.stdout
