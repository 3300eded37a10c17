"""Models in and out: the one to start from, the one that was trained, and the report on it."""

import subprocess
import sys
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from eval.report import write_report
from infra.errors import InputError, StayerError
from training.rundir import RunDir


@task(name="fetch-model")
def fetch_model(path: str) -> str:
    """The folder of a model: a local one as it is, a hub name downloaded (or found in the hub's cache).

    Raises:
        InputError: neither a folder nor a model the hub knows.
    """
    if Path(path).is_dir():
        return path
    from huggingface_hub import snapshot_download

    try:
        return str(snapshot_download(path, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt"]))
    except Exception as err:
        raise InputError(
            f"model {path!r} is neither a local folder nor to be had from the hub: {err}",
            hint="set model.path to a Hugging Face folder with weights and tokenizer",
        ) from err


@task(name="export-model", cache_policy=NO_CACHE)
def export_final(run_dir: str, step: int) -> str:
    """Write the run's last checkpoint as a Hugging Face folder, or find it written; returns the folder."""
    run = RunDir(Path(run_dir))
    if not run.model.is_dir():
        write_export(run, step, run.model)
    return str(run.model)


def write_export(run: RunDir, step: int, target: Path) -> None:
    """Write a checkpoint as a Hugging Face folder, in a process of its own: this one stays free of torch.

    Raises:
        StayerError: it could not be written, with the last words of the process that tried.
    """
    command = [sys.executable, "-m", "training.export", str(run.path), str(step), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = done.stderr.strip().splitlines() or ["no output"]
        kind = InputError if done.returncode == 2 else StayerError
        raise kind(f"step {step} of run {run.run_id} could not be exported: {words[-1]}")


@task(name="write-report", cache_policy=NO_CACHE)
def report(run_dir: str) -> str:
    """Write the run's HTML report; returns its path."""
    return str(write_report(RunDir(Path(run_dir))))
