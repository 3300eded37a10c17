"""MLflow, brought up to date with the run directory. The only module that knows MLflow.

Nothing is sent while training computes: the training process writes files, and `Tracking.sync` makes the
tracking server agree with them. It may be called at any time, any number of times, by whoever orchestrates;
what the server missed while it was down is delivered at the next call, each metric point exactly once.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A call with the server down would block for minutes by default; set before mlflow reads them.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")

import mlflow
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param
from mlflow.exceptions import MlflowException
from prefect import task
from prefect.cache_policies import NO_CACHE

from infra import storage
from infra.locks import LockHeldError, exclusive
from packing.manifest import load_manifest
from tasks.config import TrackingConfig
from tasks.tracking_items import as_params, flatten, redact, step_metrics
from training.metrics_log import MetricsFollower
from training.rundir import RunDir

_BATCH = 1000  # MLflow's limit of metric points a request
_RETRY_AFTER_S = 30.0
_OTHER_SYNC_S = 60.0

_KIND = {"mlflow.experimentKind": "custom_model_development"}  # the page for training, not for agents
_STATUS = {"running": "RUNNING", "completed": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


@task(name="register-model", cache_policy=NO_CACHE)
def register(tracking: "Tracking") -> bool:
    """Register the final model with everything that is known of it; whether the tracker has it now."""
    return tracking.sync(force=True)


class Tracking:
    """One run's mirror in MLflow.

    A parent run holds the job, the step metrics and the artifacts; child runs hold preparation, each attempt
    and each evaluation. Every item carries a tag with its name and is looked for before it is made, so that
    a crash between making and noting it cannot double it.
    """

    def __init__(self, run: RunDir, config: TrackingConfig, *, home: Path, job_name: str) -> None:
        self._run = run
        self._config = config
        self._home = home
        self._job_name = job_name
        self.uri = config.uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home}/mlflow.db"
        self._metrics = MetricsFollower(run.metrics_file)
        self._unsent: list[dict[str, Any]] = []
        self._state: dict[str, Any] = {}
        self._silent_until_s = 0.0
        self._failing = False

    def sync(self, *, force: bool = False) -> bool:
        """Bring MLflow up to date with the run directory; never raises.

        Args:
            force: try even if the server failed moments ago.

        Returns:
            Whether MLflow now holds everything.
        """
        if not force and time.monotonic() < self._silent_until_s:
            return False
        try:
            wait_s = _OTHER_SYNC_S if force else 0
            with exclusive(self._run.path / "tracking.lock", what="tracking", wait_s=wait_s):
                self._sync()
        except LockHeldError:
            return False  # another flow of this run is at it
        except Exception as err:
            self._silent_until_s = time.monotonic() + _RETRY_AFTER_S
            if not self._failing:
                self._tell("tracking_failed", error=redact(f"{type(err).__name__}: {err}")[:500])
            self._failing = True
            return False
        if self._failing:
            self._tell("tracking_recovered")
        self._failing = False
        return True

    def _tell(self, event: str, **fields: str) -> None:
        with contextlib.suppress(OSError):  # a full disk is not the tracker's to report
            self._run.record_event(event, uri=redact(self.uri), **fields)

    def _sync(self) -> None:
        client = mlflow.MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
        self._state = self._read_state()
        parent = self._parent(client)
        self._once("params", lambda: self._log_job(client, parent))
        self._once(
            "dataset", lambda: self._log_dataset(client, parent), ready=(self._run.path / "inputs.json").exists()
        )
        self._ship_metrics(client, parent)
        self._attempts(client, parent)
        self._evaluations(client, parent)
        self._artifacts(client, parent)
        if self._run.model.is_dir():
            self._register(client, parent)
        self._finish(client, parent)

    def _read_state(self) -> dict[str, Any]:
        """What this run has already sent to this server (`tracking.json`)."""
        file = self._run.path / "tracking.json"
        state: dict[str, Any] = storage.read_json(str(file)) if file.exists() else {}
        place = redact(self.uri)
        return state if state.get("uri") == place else {"uri": place, "done": {}, "shipped_step": 0}

    def _save(self) -> None:
        storage.write_json(str(self._run.path / "tracking.json"), self._state)

    def _once(self, item: str, act: Callable[[], Any], *, ready: bool = True) -> Any:
        """Do something once for the life of the run, and remember its result."""
        done = self._state["done"]
        if ready and item not in done:
            done[item] = act() or True
            self._save()
        return done.get(item)

    def _experiment(self, client: mlflow.MlflowClient) -> str:
        name = self._config.experiment or self._job_name
        found = client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        local = self.uri.startswith("sqlite")
        location = (self._home / "mlartifacts" / name).as_uri() if local else None
        return str(client.create_experiment(name, artifact_location=location, tags=_KIND))

    def _parent(self, client: mlflow.MlflowClient) -> str:
        """The one MLflow run of this training, whatever the number of attempts."""
        known = self._state["done"].get("parent")
        if known is not None:
            if _is_there(client, known):
                return str(known)
            self._state = {"uri": redact(self.uri), "done": {}, "shipped_step": 0, "deleted_run": known}
            self._metrics = MetricsFollower(self._run.metrics_file)
        tags = {"stayer.run": self._run.run_id}
        if "deleted_run" in self._state:
            tags["stayer.replaces"] = self._state["deleted_run"]
        return str(self._once("parent", lambda: self._item(client, "campaign", name=self._run.run_id, tags=tags)))

    def _item(
        self, client: mlflow.MlflowClient, item: str, *, name: str, tags: dict[str, str], parent: str | None = None
    ) -> str:
        """The MLflow run of one item: found by its tag, or made."""
        experiment = self._experiment(client)
        tags = {**tags, "stayer.item": f"{self._run.run_id}/{item}"}
        query = f"tags.`stayer.item` = '{tags['stayer.item']}'"
        if parent is not None:
            tags["mlflow.parentRunId"] = parent
            query += f" and tags.`mlflow.parentRunId` = '{parent}'"
        found = client.search_runs([experiment], query, max_results=1)
        if found:
            return str(found[0].info.run_id)
        return str(client.create_run(experiment, run_name=name, tags=tags).info.run_id)

    def _log_job(self, client: mlflow.MlflowClient, parent: str) -> None:
        params = as_params(flatten(self._run.job()))
        logged = client.get_run(parent).data.params
        missing = [Param(k, v) for k, v in params.items() if k not in logged]
        for start in range(0, len(missing), 100):
            client.log_batch(parent, params=missing[start : start + 100])
        client.log_text(parent, redact(self._run.job_file.read_text()), "job.yaml")

    def _log_dataset(self, client: mlflow.MlflowClient, parent: str) -> str:
        inputs = self._run.inputs()
        manifest = load_manifest(inputs.dataset)
        dataset = Dataset(
            name=self._job_name,
            digest=inputs.dataset_id[:32],
            source_type="stayer",
            source=json.dumps({"uri": inputs.dataset, "sources": [s.name for s in manifest.sources]}),
            profile=json.dumps({"rows": manifest.rows, "effective_tokens": manifest.effective_tokens}),
        )
        client.log_inputs(parent, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
        client.log_artifact(parent, str(Path(inputs.dataset) / "manifest.json"))
        child = self._item(client, "prepare", name="prepare", tags={}, parent=parent)
        counts = {
            "rows": manifest.rows,
            "effective_tokens": manifest.effective_tokens,
            "padding_fraction": 1 - manifest.effective_tokens / (manifest.rows * manifest.seq_len),
        }
        now_ms = int(time.time() * 1000)
        params = {"dataset_id": inputs.dataset_id, "dataset": inputs.dataset, "tokenizer": inputs.tokenizer}
        client.log_batch(
            child,
            metrics=[Metric(k, v, now_ms, 0) for k, v in counts.items()],
            params=[Param(k, v) for k, v in as_params(params).items()],
        )
        client.set_terminated(child)
        return child

    def _ship_metrics(self, client: mlflow.MlflowClient, parent: str) -> None:
        """Send the steps above the high-water mark; a step that was run again after a resume is the same step.

        The point's time is the row's, so a batch that was sent but not noted is recognised by the server.
        """
        self._unsent += self._metrics.new_rows()
        latest = {int(row["step"]): row for row in self._unsent if row["step"] > self._state["shipped_step"]}
        rows = [latest[step] for step in sorted(latest)]
        batch: list[Metric] = []
        for index, row in enumerate(rows):
            time_ms, step = int(row["time_s"] * 1000), int(row["step"])
            batch += [Metric(key, value, time_ms, step) for key, value in step_metrics(row).items()]
            last = index == len(rows) - 1
            if last or len(batch) > _BATCH - 50:
                for start in range(0, len(batch), _BATCH):
                    client.log_batch(parent, metrics=batch[start : start + _BATCH])
                batch = []
                self._state["shipped_step"] = step
                self._save()
        self._unsent = []

    def _attempts(self, client: mlflow.MlflowClient, parent: str) -> None:
        for attempt in self._run.attempts():
            item = f"attempt-{attempt.number:04d}"

            def start(item: str = item, attempt: Any = attempt) -> str:
                child = self._item(client, item, name=item, tags={}, parent=parent)
                fields = attempt.model_dump(include={"host", "world_size", "resumed_from_step"})
                client.log_batch(child, params=[Param(k, v) for k, v in as_params(fields).items()])
                return child

            child = self._once(item, start)
            record = self._run.exit_record(attempt.number)

            def end(child: str = child, attempt: Any = attempt, record: Any = record) -> None:
                client.set_tag(child, "exit_reason", record.reason.value)
                client.set_tag(child, "exit_message", record.message[:500])
                client.log_metric(child, "last_step", record.step, int(record.time_s * 1000), 0)
                client.log_metric(child, "seconds", record.time_s - attempt.started_s, int(record.time_s * 1000), 0)
                good = record.reason.value in ("completed", "preempted")
                client.set_terminated(child, "FINISHED" if good else "FAILED", int(record.time_s * 1000))

            self._once(f"{item}-end", end, ready=record is not None)

    def _evaluations(self, client: mlflow.MlflowClient, parent: str) -> None:
        for file in sorted(self._run.evaluations.glob("step-*.json")):

            def score(file: Path = file) -> None:
                result = storage.read_json(str(file))
                child = self._item(
                    client, f"evaluation-{file.stem}", name=f"evaluation-{file.stem}", tags={}, parent=parent
                )
                time_ms, step = int(result["time_s"] * 1000), int(result["step"])
                points = [Metric(f"perplexity/{k}", v, time_ms, step) for k, v in result["perplexity"].items()]
                client.log_batch(child, metrics=points)
                client.log_artifact(child, str(file))
                client.set_terminated(child)
                client.log_batch(parent, metrics=points)

            self._once(f"evaluation-{storage.sha256_file(str(file))[:16]}", score)

    def _artifacts(self, client: mlflow.MlflowClient, parent: str) -> None:
        report = self._run.path / "report.html"
        if report.exists():
            digest = storage.sha256_file(str(report))[:16]
            self._once(f"report-{digest}", lambda: client.log_artifact(parent, str(report)))

    def _finish(self, client: mlflow.MlflowClient, parent: str) -> None:
        """Show the campaign as running or as ended, as its newest start or end says."""
        marks = [e for e in self._run.events() if e["event"] in ("campaign_started", "campaign_finished")]
        if not marks:
            return
        status = _STATUS.get(marks[-1].get("outcome", "running"), "FAILED")
        if status == "RUNNING":
            self._once(f"status-{marks[-1]['time_s']}", lambda: client.update_run(parent, status))
        else:
            self._once(f"status-{marks[-1]['time_s']}", lambda: client.set_terminated(parent, status))

    def _register(self, client: mlflow.MlflowClient, parent: str) -> None:
        """Make the final model a registered version, once, and give it the alias `final`."""
        name = self._config.registered_model or self._job_name

        def create() -> str:
            if not client.search_registered_models(f"name = '{name}'"):
                client.create_registered_model(name)
            for version in client.search_model_versions(f"name = '{name}'"):
                if version.run_id == parent:
                    return str(version.version)
            source = self._model_source(client, parent)
            tags = {"stayer.run": self._run.run_id}
            return str(client.create_model_version(name, source=source, run_id=parent, tags=tags).version)

        version = self._once("model_version", create)
        self._once("alias", lambda: client.set_registered_model_alias(name, "final", version))
        self._once("version_tag", lambda: client.set_tag(parent, "stayer.model_version", f"{name}/{version}"))

    def _model_source(self, client: mlflow.MlflowClient, parent: str) -> str:
        """Where the registered model lies: in place when the server shares this disk, else uploaded to the run."""
        if self.uri.startswith("sqlite"):
            return self._run.model.as_uri()
        client.log_artifacts(parent, str(self._run.model), "model")
        return f"{client.get_run(parent).info.artifact_uri}/model"


def _is_there(client: mlflow.MlflowClient, run_id: str) -> bool:
    """Whether an MLflow run exists and nobody has deleted it, or the whole store with it."""
    try:
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException as err:
        if err.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
