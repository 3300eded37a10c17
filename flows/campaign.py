"""A campaign: one job carried to its end in one run directory, by at most one flow at a time."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect.runtime import flow_run

from flows.job import Job
from flows.job_file import load_job, result_hash, run_id, to_yaml
from infra import storage
from infra.errors import InputError
from infra.home import home
from infra.locks import exclusive
from tasks.corpus import PreparedData
from tasks.tracking import Tracking
from training.exits import ExitReason
from training.rundir import Inputs, RunDir


@dataclass(frozen=True)
class Campaign:
    """A job and the run directory it is carried out in."""

    job: Job
    run: RunDir
    tracking: Tracking

    def record_inputs(self, data: PreparedData, model: str | None) -> None:
        """Bind the run to its data and its starting model.

        Raises:
            InputError: the run already trains on something else, such as sources that have changed since.
        """
        inputs = Inputs(
            dataset=data.dataset,
            dataset_id=data.dataset_id,
            model=model,
            tokenizer=data.tokenizer,
            job_hash=result_hash(self.job),
        )
        if (self.run.path / "inputs.json").exists():
            known = self.run.inputs()
            if known.dataset_id != inputs.dataset_id:
                raise InputError(
                    f"run {self.run.run_id} trains on dataset {known.dataset_id[:16]}, but its sources now give "
                    f"{inputs.dataset_id[:16]}: a file was added, removed or changed",
                    hint="restore the sources, or start a new run with --run-id NAME",
                )
            return
        self.run.write_inputs(inputs)

    @property
    def trained(self) -> bool:
        """Whether the last training step is done."""
        attempts = self.run.attempts()
        record = self.run.exit_record(attempts[-1].number) if attempts else None
        return record is not None and record.reason is ExitReason.COMPLETED

    def finish(self, outcome: str, why: str = "") -> None:
        """Record how the campaign ended; this event, not what a server says, is what is believed."""
        self.run.record_event("campaign_finished", outcome=outcome, why=why)


def run_directory(job: Job, wanted: str | None = None) -> RunDir:
    """The run directory of a job, or the one asked for by name.

    Raises:
        InputError: the directory belongs to another job, or the name is no plain name.
    """
    name = wanted or run_id(job)
    if Path(name).name != name or name.startswith("."):
        raise InputError(f"run id {name!r} is not a plain name", hint="letters, digits, dots, dashes, underscores")
    run = RunDir(home() / "runs" / name)
    if run.path.exists() and any(run.path.iterdir()):
        if not run.job_file.exists():
            raise InputError(f"{run.path} exists and is not a run directory", hint="choose another --run-id")
        other = load_job(run.job_file)
        if result_hash(other) != result_hash(job):
            raise InputError(
                f"run {name} belongs to another job ({other.name}, {result_hash(other)[:8]}); "
                f"this one is {job.name}, {result_hash(job)[:8]}",
                hint="choose another --run-id, or resume that run with `stayer resume`",
            )
    return run


def find_run(name: str) -> RunDir:
    """The run of that id below the home folder, or at that path.

    Raises:
        InputError: there is no such run.
    """
    for candidate in (home() / "runs" / name, Path(name)):
        if (candidate / "job.yaml").is_file():
            return RunDir(candidate.resolve())
    known = sorted(p.parent.name for p in (home() / "runs").glob("*/job.yaml"))
    raise InputError(f"there is no run {name!r} in {home() / 'runs'}", hint=f"runs: {', '.join(known) or 'none yet'}")


def load_campaign(name: str) -> Campaign:
    """The campaign of an existing run, to read it or to work on a part of it.

    Raises:
        InputError: there is no such run.
    """
    run = find_run(name)
    return _campaign(load_job(run.job_file), run)


def _campaign(job: Job, run: RunDir) -> Campaign:
    return Campaign(job, run, Tracking(run, job.tracking, home=home(), job_name=job.name))


@contextlib.contextmanager
def open_campaign(
    job_file: str,
    *,
    overrides: Sequence[str] = (),
    wanted: str | None = None,
    by_hand: bool = True,
    part_of_another: bool = False,
) -> Iterator[Campaign]:
    """Claim the run of a job for this flow, and record that it is at work.

    Args:
        job_file: path of the job file.
        overrides: ``section.key=value`` items.
        wanted: run id; by default the job's own.
        by_hand: whether a person asked for it.
        part_of_another: whether another campaign carries this one out, as its base job.

    Raises:
        InputError: the job is wrong, or another live flow owns the run.
    """
    job = load_job(job_file, overrides)
    run = run_directory(job, wanted)
    run.path.mkdir(parents=True, exist_ok=True)
    with exclusive(run.path / "campaign.lock", what=f"flow run {flow_run.id or 'none'}"):
        if not run.job_file.exists():
            storage.write_text(str(run.job_file), to_yaml(job))
        run.record_event(
            "campaign_started",
            flow_run=str(flow_run.id or ""),
            root_flow_run=str(flow_run.root_flow_run_id or ""),
            pid=os.getpid(),
            by_hand=by_hand,
            part_of_another=part_of_another,
        )
        yield _campaign(job, run)
