"""The main job: text in, a trained, evaluated and registered model out."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Cancelled

from eval.identity import known_scores
from flows.campaign import Campaign, open_campaign
from flows.checkpoint import publish_checkpoints
from flows.evaluate import evaluate_checkpoint
from flows.naming import name_of_run
from flows.prepare import prepare_data
from flows.train import GivenUpError, train
from infra.errors import InputError, StayerError
from tasks.checkpoints import unpublished
from tasks.models import export_final, fetch_model, report
from tasks.stages import stage
from tasks.stop import StoppedError
from tasks.tracking import register
from training.checkpoint_manifest import MANIFEST
from training.rundir import RunDir

_OTHER_PUBLISHER_S = 6 * 3600
# The campaign's heartbeat speaks for its sub-flows too; ending one of their own costs each of them a second.
_ONE_HEARTBEAT = {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}


@flow(name="continued-training", flow_run_name=name_of_run)
def continued_training(
    job: str, run_id: str | None = None, overrides: list[str] | None = None, by_hand: bool = True
) -> str | State[str]:
    """Carry a job from raw text to a registered, evaluated model.

    Finished parts are recognised and not done again: the same call starts a run, goes on with it, confirms it.

    Args:
        job: path of the job file.
        run_id: run to work in; by default the job's own.
        overrides: ``section.key=value`` items.
        by_hand: whether a person asked for it; their act renews the restart budget.

    Returns:
        The run id; a run stopped on request ends as Cancelled.
    """
    with open_campaign(job, overrides=overrides or [], wanted=run_id, by_hand=by_hand) as campaign:
        try:
            with _ending(campaign), temporary_settings(_ONE_HEARTBEAT):
                _carry_out(campaign, job, by_hand)
        except StoppedError as stopped:
            return Cancelled(message=stopped.message)
        return campaign.run.run_id


@flow(name="base-model", flow_run_name=name_of_run)
def base_model(job: str, by_hand: bool = True) -> str:
    """Carry out the job that another one builds on.

    Returns:
        Folder of its final model.
    """
    with open_campaign(job, by_hand=by_hand, part_of_another=True) as campaign:
        with _ending(campaign):
            _carry_out(campaign, job, by_hand)
        return str(campaign.run.model)


def _carry_out(campaign: Campaign, job: str, by_hand: bool) -> None:
    """Every stage in order; each recognises what is already done."""
    run = campaign.run
    # A resume goes on with what the run is bound to: it needs neither the sources nor the base job again.
    if not (campaign.prepared and Path(job).resolve() == run.job_file.resolve()):
        model = _starting_model(campaign, by_hand)
        campaign.record_inputs(prepare_data(str(run.job_file), run=run.run_id), model)
    campaign.tracking.sync()
    if run.inputs().model is not None:
        _score_start(run)
    step = campaign.final_step() or train(run.run_id)
    if unpublished(run):
        publish_checkpoints(run.run_id, wait_s=_OTHER_PUBLISHER_S)
    if (run.checkpoint(step) / MANIFEST).exists():  # else the model was exported and scored before it went
        _score(run, step)
    with stage("export", run):
        export_final(str(run.path), step)
    with stage("register", run):
        register(campaign.tracking)
    with stage("report", run):
        report(str(run.path))


def _score_start(run: RunDir) -> None:
    """Score the starting model; a failure is told and keeps nothing from training."""
    try:
        _score(run, 0)
    except StoppedError:
        raise
    except StayerError as err:
        run.record_event("evaluation_failed", step=0, error=err.message)


def _score(run: RunDir, step: int) -> None:
    if known_scores(run, step) is None:
        evaluate_checkpoint(run.run_id, step)


def _starting_model(campaign: Campaign, by_hand: bool) -> str | None:
    model = campaign.job.model
    if model.base_job is not None:
        return base_model(model.base_job, by_hand)
    return fetch_model(model.path) if model.path is not None else None


@contextlib.contextmanager
def _ending(campaign: Campaign) -> Iterator[None]:
    """Record how the campaign ends, whatever way it takes, and let the tracker know."""
    outcome, why, permanent = "completed", "", False
    try:
        yield
    except (StoppedError, KeyboardInterrupt, TerminationSignal) as err:
        outcome, why = "stopped", str(err) or "stopped by a signal"
        raise
    except BaseException as err:
        outcome, why, permanent = "failed", str(err), isinstance(err, InputError | GivenUpError)
        raise
    finally:
        campaign.finish(outcome, why, permanent=permanent)
        campaign.tracking.sync(force=True)
