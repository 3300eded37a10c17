"""A campaign: one job carried to its end in one run directory, by at most one flow at a time."""

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from prefect.runtime import flow_run

from flows.job import Job
from flows.job_file import load_job, result_hash, to_yaml
from flows.runs import find_run, run_directory
from infra import storage
from infra.errors import InputError
from infra.home import home
from infra.locks import exclusive
from tasks.config import TrackingConfig
from tasks.corpus import PreparedData
from tasks.tracking import Tracking
from training.checkpoint_manifest import DamagedCheckpointError, read_manifest, verify
from training.exits import ExitReason
from training.rundir import Inputs, RunDir

_BASE_WAIT_S = 30 * 24 * 3600


@dataclass(frozen=True)
class Campaign:
    """A job and the run directory it is carried out in."""

    job: Job
    run: RunDir
    tracking: Tracking

    def final_step(self) -> int | None:
        """The last training step, if it is done and what it left can be used: the exported model or its checkpoint.

        A checkpoint that was lost or damaged before the export makes the run train again from the one before.
        """
        attempts = self.run.attempts()
        record = self.run.exit_record(attempts[-1].number) if attempts else None
        if record is None or record.reason is not ExitReason.COMPLETED:
            return None
        if self.run.model.is_dir():
            return record.step
        folder = self.run.checkpoint(record.step)
        try:
            verify(folder, read_manifest(folder))
        except DamagedCheckpointError as err:
            self.run.record_event("final_checkpoint_lost", step=record.step, problem=err.message)
            return None
        return record.step

    def record_inputs(self, data: PreparedData, model: str | None) -> None:
        """Bind the run to its data and its starting model.

        Raises:
            InputError: the run already trains on something else, such as sources that have changed since.
        """
        if not (self.run.path / "inputs.json").exists():
            inputs = Inputs(
                dataset=data.dataset,
                dataset_id=data.dataset_id,
                model=model,
                tokenizer=data.tokenizer,
                job_hash=result_hash(self.job),
            )
            self.run.write_inputs(inputs)
        known = self.run.inputs()
        if known.dataset_id != data.dataset_id:
            raise InputError(
                f"run {self.run.run_id} trains on dataset {known.dataset_id[:16]}, but its sources now give "
                f"{data.dataset_id[:16]}: a file was added, removed or changed",
                hint="restore the sources, or start a new run with --run-id NAME",
            )

    @property
    def prepared(self) -> bool:
        """Whether the run is bound to a starting model and a dataset that exists."""
        inputs = self.run.inputs() if (self.run.path / "inputs.json").exists() else None
        return inputs is not None and Path(inputs.dataset, "manifest.json").is_file()

    def finish(self, outcome: str, why: str = "", *, permanent: bool = False) -> None:
        """Record how the campaign ended; this event, not what a server says, is what is believed.

        Args:
            outcome: completed, stopped or failed.
            why: in words.
            permanent: whether going on without a change would fail again.
        """
        self.run.record_event("campaign_finished", outcome=outcome, why=why, permanent=permanent)


def load_campaign(name: str) -> Campaign:
    """The campaign of an existing run, to read it or to work on a part of it.

    Raises:
        InputError: there is no such run.
    """
    run = find_run(name)
    return _campaign(load_job(run.job_file), run)


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
    # Two campaigns on one base job: the second waits for the first to finish it.
    wait_s = _BASE_WAIT_S if part_of_another else 0
    with exclusive(run.path / "campaign.lock", what=f"flow run {flow_run.id or 'none'}", wait_s=wait_s):
        _keep_job(run, job)
        run.record_event(
            "campaign_started",
            flow_run=str(flow_run.id or ""),
            root_flow_run=str(flow_run.root_flow_run_id or ""),
            pid=os.getpid(),
            process_started_s=psutil.Process().create_time(),
            by_hand=by_hand,
            part_of_another=part_of_another,
        )
        yield _campaign(job, run)


def _keep_job(run: RunDir, job: Job) -> None:
    """Save the resolved job; settings that do not shape the result may have changed since the last time."""
    text = to_yaml(job)
    if run.job_file.exists() and run.job_file.read_text() == text:
        return
    if run.job_file.exists():
        run.record_event("job_changed")
    storage.write_text(str(run.job_file), text)


def _campaign(job: Job, run: RunDir) -> Campaign:
    return Campaign(job, run, _tracking(run, job.tracking, job.name))


@functools.cache
def _tracking(run: RunDir, config: TrackingConfig, job_name: str) -> Tracking:
    """One mirror a run and process, so that all flows know of an outage."""
    return Tracking(run, config, home=home(), job_name=job_name)
