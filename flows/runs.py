"""Finding run directories: light enough for commands that only look."""

import re
from pathlib import Path

from flows.job import Job
from flows.job_file import load_job, result_hash, run_id
from infra.errors import InputError
from infra.home import home
from training.rundir import RunDir


def run_directory(job: Job, wanted: str | None = None) -> RunDir:
    """The run directory of a job, or the one asked for by name; it need not exist yet.

    Raises:
        InputError: the directory belongs to another job, or the name is no plain name.
    """
    name = wanted or run_id(job)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", name):
        raise InputError(f"run id {name!r} is not a plain name", hint="letters, digits, dots, dashes, underscores")
    run = RunDir(home() / "runs" / name)
    if not run.job_file.exists():
        strangers = (
            [f.name for f in run.path.iterdir() if f.suffix not in (".lock", ".tmp")] if run.path.exists() else []
        )
        if strangers:
            raise InputError(f"{run.path} exists and is not a run directory", hint="choose another --run-id")
        return run
    other = load_job(run.job_file)
    if other != job and result_hash(other) != result_hash(job):  # a resume needs no base job file
        raise InputError(
            f"run {name} belongs to another job ({other.name}, {result_hash(other)[:8]}); "
            f"this one is {job.name}, {result_hash(job)[:8]}",
            hint="choose another --run-id, or go on with that run by `stayer resume`",
        )
    return run


def all_runs() -> list[RunDir]:
    """Every run of the home folder, by name."""
    return [RunDir(file.parent) for file in sorted((home() / "runs").glob("*/job.yaml"))]


def find_run(name: str) -> RunDir:
    """The run of that id in the home folder, or at that path.

    Raises:
        InputError: there is no such run.
    """
    runs = home() / "runs"
    for candidate in (runs / name, Path(name).resolve()):
        if not (candidate / "job.yaml").is_file():
            continue
        if candidate.parent.resolve() != runs.resolve():
            elsewhere = candidate.parent.parent
            raise InputError(f"{candidate} is no run of {home()}", hint=f"stayer --home {elsewhere} … {candidate.name}")
        return RunDir(candidate)
    known = ", ".join(run.run_id for run in all_runs())
    raise InputError(f"there is no run {name!r} in {home() / 'runs'}", hint=f"runs: {known or 'none yet'}")
