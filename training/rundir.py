"""The run directory: the contract between training and everything else. Knows names and formats, imports no torch."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from infra import storage
from infra.errors import InputError
from training.exits import ExitRecord


class Inputs(BaseModel, frozen=True):
    """`inputs.json`: what preparation made for this run, as places and identities."""

    dataset: str
    """Folder of the packed dataset."""
    dataset_id: str
    model: str | None = None
    """Hugging Face folder to start from; none means random weights from `model.architecture`."""
    tokenizer: str
    """Folder of the tokenizer."""
    job_hash: str
    """Fingerprint of everything in the job that shapes the result."""


class AttemptRecord(BaseModel, frozen=True):
    """`attempts/<n>/attempt.json`: one launch of torchrun."""

    number: int
    """Counts from 1; also the lease token, which only grows."""
    mark: str
    """Value of the environment variable STAYER_ATTEMPT in every process of the attempt."""
    host: str
    pid: int
    """The torchrun agent; 0 while it is being started."""
    create_time_s: float
    """When that process started, as the kernel tells: pids are reused."""
    world_size: int
    resumed_from_step: int
    """Step of the newest committed checkpoint at launch; 0 without one."""
    started_s: float
    """Wall clock, seconds since the epoch."""


class Heartbeat(BaseModel, frozen=True):
    """`heartbeat/<rank>.json`: rewritten by each rank at every phase."""

    rank: int
    pid: int
    step: int
    phase: str
    monotonic_s: float
    time_s: float


@dataclass(frozen=True)
class RunDir:
    """Paths of one run and typed access to its small files."""

    path: Path

    @property
    def run_id(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def job_file(self) -> Path:
        """The resolved job."""
        return self.path / "job.yaml"

    @property
    def metrics_file(self) -> Path:
        """One JSON object a step; after a resume, steps that were run again stand twice (see `metrics`)."""
        return self.path / "metrics.jsonl"

    @property
    def events_file(self) -> Path:
        """One JSON object an event."""
        return self.path / "events.jsonl"

    @property
    def lease_file(self) -> Path:
        """Who may write."""
        return self.path / "lease.json"

    @property
    def stop_file(self) -> Path:
        """Its existence asks the trainer to checkpoint and leave."""
        return self.path / "stop"

    @property
    def checkpoints(self) -> Path:
        """Folder of `step-<8 digits>` folders."""
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        """Folder of `step-<8 digits>.json` results."""
        return self.path / "evaluations"

    @property
    def model(self) -> Path:
        """The final model as a Hugging Face folder; exists only when the run completed."""
        return self.path / "model"

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint taken after `step`."""
        return self.checkpoints / f"step-{step:08d}"

    def evaluation(self, step: int) -> Path:
        """Result of evaluating the checkpoint taken after `step`; step 0 is the starting model."""
        return self.evaluations / f"step-{step:08d}.json"

    def attempt(self, number: int) -> Path:
        """Folder of one attempt: attempt.json, exit.json, logs."""
        return self.path / "attempts" / f"{number:04d}"

    def heartbeat(self, rank: int) -> Path:
        """Heartbeat file of one rank."""
        return self.path / "heartbeat" / f"{rank}.json"

    def job(self) -> dict[str, Any]:
        """The resolved job as plain data.

        Raises:
            InputError: this is not a run directory.
        """
        if not self.job_file.is_file():
            raise InputError(
                f"{self.path} is not a run directory: it holds no job.yaml", hint="stayer status lists runs"
            )
        return dict(yaml.safe_load(self.job_file.read_text()))

    def inputs(self) -> Inputs:
        """What the run trains on.

        Raises:
            InputError: preparation has not finished for this run.
        """
        file = self.path / "inputs.json"
        if not file.is_file():
            raise InputError(f"run {self.run_id} has no inputs.json: its data is not prepared", hint="stayer run JOB")
        return Inputs.model_validate(storage.read_json(str(file)))

    def write_inputs(self, inputs: Inputs) -> None:
        """Record what the run trains on."""
        storage.write_json(str(self.path / "inputs.json"), inputs.model_dump())

    def attempts(self) -> list[AttemptRecord]:
        """All attempts so far, oldest first."""
        files = sorted((self.path / "attempts").glob("*/attempt.json"))
        return [AttemptRecord.model_validate(storage.read_json(str(f))) for f in files]

    def exit_record(self, attempt: int) -> ExitRecord | None:
        """Why an attempt ended, or None while nobody has said."""
        file = self.attempt(attempt) / "exit.json"
        if not file.is_file():
            return None
        return ExitRecord.model_validate(storage.read_json(str(file)))

    def peer_exit_records(self, attempt: int) -> list[ExitRecord]:
        """What ranks wrote that only saw others fail, by time; they count when an attempt is over and nobody wrote
        exit.json, because the one who knew the cause was killed or hung."""
        files = self.attempt(attempt).glob("exit-rank*.json")
        records = [ExitRecord.model_validate(storage.read_json(str(f))) for f in files]
        return sorted(records, key=lambda record: record.time_s)

    def heartbeats(self) -> list[Heartbeat]:
        """The latest sign of life of each rank, by rank."""
        beats = []
        for file in (self.path / "heartbeat").glob("*.json"):
            try:
                beats.append(Heartbeat.model_validate(storage.read_json(str(file))))
            except (FileNotFoundError, ValidationError):
                continue  # replaced while being read: the next look sees the new one
        return sorted(beats, key=lambda b: b.rank)

    def metrics(self) -> list[dict[str, Any]]:
        """One object a step, in order: a step that was run again after a resume counts as it was run last."""
        latest = {int(row["step"]): row for row in storage.read_json_lines(self.metrics_file) if "step" in row}
        return [latest[step] for step in sorted(latest)]

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Events in order, all or of one kind."""
        rows = [r for r in storage.read_json_lines(self.events_file) if "event" in r and "time_s" in r]
        return rows if kind is None else [r for r in rows if r["event"] == kind]

    def record_event(self, kind: str, **fields: Any) -> None:
        """Append an event with the time it happened."""
        storage.append_json_line(self.events_file, {"event": kind, "time_s": time.time(), **fields})
