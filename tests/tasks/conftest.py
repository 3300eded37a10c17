import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra import storage
from training.exits import ExitReason, ExitRecord
from training.rundir import AttemptRecord, RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run directory with a job and nothing done yet."""
    directory = RunDir(tmp_path / "runs" / "small-00000000")
    directory.path.mkdir(parents=True)
    job = {"name": "small", "training": {"learning_rate": 1e-4, "betas": [0.9, 0.95]}, "note": None}
    directory.job_file.write_text(yaml.safe_dump(job))
    return directory


@pytest.fixture
def add_attempt(run: RunDir) -> Callable[..., AttemptRecord]:
    """Records an attempt, and how it ended unless `reason` is None."""

    def add(reason: ExitReason | None, step: int = 0, *, time_s: float = 100.0, message: str = "") -> AttemptRecord:
        number = len(run.attempts()) + 1
        attempt = AttemptRecord(
            number=number,
            mark=f"mark-{number}",
            host="here",
            pid=1,
            create_time_s=0.0,
            world_size=2,
            resumed_from_step=0,
            started_s=time_s - 10,
        )
        folder = run.attempt(number)
        folder.mkdir(parents=True)
        storage.write_json(str(folder / "attempt.json"), attempt.model_dump())
        if reason is not None:
            record = ExitRecord(reason=reason, step=step, rank=0, host="here", message=message, time_s=time_s)
            storage.write_json(str(folder / "exit.json"), record.model_dump(mode="json"))
        return attempt

    return add


@pytest.fixture
def log_steps(run: RunDir) -> Callable[..., None]:
    """Appends lines to metrics.jsonl as the trainer does."""

    def log(first: int, last: int, *, attempt: int = 1) -> None:
        with run.metrics_file.open("a") as file:
            for step in range(first, last + 1):
                row: dict[str, Any] = {"step": step, "attempt": attempt, "loss": 10.0 / step, "tokens_per_s": 100.0}
                row |= {"tokens": 64 * step, "step_s": 0.5, "mfu": None, "time_s": 1000.0 * attempt + step}
                file.write(json.dumps(row) + "\n")

    return log
