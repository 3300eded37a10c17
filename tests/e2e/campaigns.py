"""Real campaigns through the command line, small enough for two cores."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from training.rundir import RunDir

DEADLINE_S = 240
_STAYER = str(Path(sys.executable).with_name("stayer"))

ARCHITECTURE = {
    "model_type": "qwen3",
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
DOCUMENTATION = {"name": "documentation", "uri": "${python:purelib}/p*.dist-info/METADATA", "format": "text"}
SOURCE_CODE = {"name": "python-source", "uri": ["${python:stdlib}/asyncio/*.py", "${python:stdlib}/email/*.py"]}
COMMON = {
    "packing": {"seq_len": 128},
    "checkpoint": {"interval_steps": 30},
    "cluster": {"processes_per_node": 2, "stop_budget_s": 60},
    "recovery": {"backoff_s": 0},
}
TRAINING = {"global_batch_rows": 8, "micro_batch_rows": 4, "compute_dtype": "float32", "warmup_steps": 2}
BASE_JOB = {
    **COMMON,
    "name": "small-base",
    "model": {"architecture": ARCHITECTURE, "tokenizer": {"vocab_size": 1024}},
    "data": {
        "sources": [{**DOCUMENTATION, "role": "domain"}, {**SOURCE_CODE, "role": "general", "repeat": 0}],
        "held_out_fraction": 0.2,
        "held_out_max_tokens": 8192,
    },
    "training": {**TRAINING, "total_tokens": 40 * 1024, "learning_rate": 3e-3},
    "evaluation": {"every_checkpoint": False},
}
JOB = {
    **COMMON,
    "name": "small",
    "model": {"base_job": "small-base.yaml"},
    "data": {
        "sources": [{**SOURCE_CODE, "role": "domain"}, {**DOCUMENTATION, "role": "general", "repeat": 0}],
        "held_out_fraction": 0.2,
        "held_out_max_tokens": 8192,
    },
    "training": {**TRAINING, "total_tokens": 60 * 1024, "learning_rate": 2e-3},
}


@dataclass
class Stayer:
    """The command in a folder of its own."""

    home: Path
    env: dict[str, str] = field(default_factory=dict)

    def write_jobs(self, **changes: dict[str, Any]) -> Path:
        """Write the small job and its base; `section={key: value}` changes the small job."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "small-base.yaml").write_text(yaml.safe_dump(BASE_JOB))
        file = self.home / "small.yaml"
        file.write_text(yaml.safe_dump({**JOB, **{name: {**JOB[name], **keys} for name, keys in changes.items()}}))
        return file

    def environment(self) -> dict[str, str]:
        """What the command sees; no server of the outside."""
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
        return {**outside, "STAYER_HOME": str(self.home / ".stayer"), **self.env}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            [_STAYER, *arguments],
            env=self.environment(),
            cwd=self.home,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return finish(self.start(*arguments))

    def json(self, *arguments: str) -> Any:
        """Run a command that reports as JSON, and must succeed."""
        done = self.call(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def run_of(self, name: str) -> RunDir:
        """The one run of a job."""
        (folder,) = (self.home / ".stayer" / "runs").glob(f"{name}-????????")
        return RunDir(folder)


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for a command and collect what it said."""
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"still running after {DEADLINE_S} s: {process.args}") from None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def until(condition: Callable[[], Any], *, process: subprocess.Popen[str] | None = None) -> Any:
    """Look again and again until the condition holds; returns its value."""
    deadline = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        assert process is None or process.poll() is None, f"ended early: {finish(process)}"
        time.sleep(0.02)
    return value


def find_run(stayer: Stayer, name: str) -> RunDir | None:
    """The run of a job once it exists."""
    found = list((stayer.home / ".stayer" / "runs").glob(f"{name}-????????"))
    return RunDir(found[0]) if found else None


def reached(stayer: Stayer, name: str, step: int) -> Callable[[], RunDir | None]:
    """A condition: the run has done this step."""

    def look() -> RunDir | None:
        run = find_run(stayer, name)
        return run if run and any(row["step"] >= step for row in run.metrics()) else None

    return look


def rank_pid(run: RunDir, rank: int) -> int:
    """Process of a rank of the newest attempt."""
    return next(beat.pid for beat in run.heartbeats() if beat.rank == rank)


def no_processes_left(run: RunDir) -> bool:
    """Whether nothing that carries a mark of this run is alive."""
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("STAYER_ATTEMPT", "")
            if mark.startswith(f"{run.run_id}:") and process.status() != psutil.STATUS_ZOMBIE:
                return False
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return True


@contextmanager
def services(stayer: Stayer):
    """`stayer up` for as long as the block lasts; yields its two addresses."""
    process = stayer.start("up")
    try:
        lines = {}
        while not {"Prefect", "MLflow"} <= set(lines):
            line = process.stdout.readline()
            assert line, f"stayer up ended: {finish(process).stderr}"
            name, _, address = line.partition(" ")
            lines[name] = address.strip()
        yield lines["Prefect"], lines["MLflow"]
    finally:
        process.send_signal(signal.SIGINT)
        assert finish(process).returncode == 0
