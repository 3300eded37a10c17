"""Training through every crash: attempt after attempt until the last step is done."""

import time
from functools import partial

from prefect import flow, get_run_logger

from flows.campaign import Campaign, load_campaign
from flows.checkpoint import publish_checkpoints
from infra.errors import StayerError
from tasks.checkpoints import newest_step
from tasks.launching import STOP, launch_or_attach, watch
from tasks.recovery import Action, decide
from tasks.stages import stage
from training.exits import ExitReason
from training.rundir import AttemptRecord

_SYNC_EVERY_S = 5.0


class StoppedError(StayerError):
    """The run was stopped on request; it can be resumed."""


@flow(name="train", flow_run_name="{run}")
def train(run: str) -> int:
    """Train a prepared run to its last step, restarting failed attempts from the last committed checkpoint.

    If the run is already being trained (the flow that started it is gone), this attaches to it.

    Returns:
        The last step.

    Raises:
        StoppedError: somebody asked it to stop; a checkpoint was taken.
        StayerError: it was given up, with the reason.
    """
    campaign = load_campaign(run)
    while True:
        attempt = launch_or_attach(str(campaign.run.path), campaign.job.cluster)
        with stage("train", campaign.run, timed=False):
            _look_after(campaign, attempt)
        decision = decide(campaign.run, campaign.job.recovery)
        campaign.run.record_event("decision", attempt=attempt.number, **decision.model_dump(mode="json"))
        campaign.tracking.sync()
        if decision.action is Action.FINISH:
            return int(campaign.run.metrics()[-1]["step"])
        if decision.action is Action.STOP:
            raise _ending(campaign, attempt, decision.why)
        get_run_logger().warning("%s; starting again in %.0f s", decision.why, decision.wait_s)
        if STOP.wait(decision.wait_s):
            raise StoppedError(f"stopped on request between two attempts: {decision.why}")


def _look_after(campaign: Campaign, attempt: AttemptRecord) -> None:
    """Publish each checkpoint as it is committed, until the attempt has ended."""
    handled, next_sync_s = 0, 0.0

    def meanwhile() -> None:
        nonlocal next_sync_s
        if time.monotonic() >= next_sync_s:
            campaign.tracking.sync()
            next_sync_s = time.monotonic() + _SYNC_EVERY_S

    while True:
        end = watch(
            campaign.run,
            attempt,
            cluster=campaign.job.cluster,
            recovery=campaign.job.recovery,
            until=partial(_is_newer, campaign, handled),
            meanwhile=meanwhile,
        )
        if STOP.is_set():
            return
        handled = newest_step(campaign.run)
        publish_checkpoints(campaign.run.run_id)
        if end is not None:
            return


def _is_newer(campaign: Campaign, step: int) -> bool:
    return newest_step(campaign.run) > step


def _ending(campaign: Campaign, attempt: AttemptRecord, why: str) -> StayerError:
    record = campaign.run.exit_record(attempt.number)
    if record is not None and record.reason is ExitReason.PREEMPTED:
        return StoppedError(why, hint=f"stayer resume {campaign.run.run_id}")
    logs = campaign.run.attempt(attempt.number)
    return StayerError(
        f"training stopped: {why}", hint=f"logs: {logs}; go on with `stayer resume {campaign.run.run_id}`"
    )
