"""The periodic checkpoint flow: whatever training committed becomes published and evaluated."""

from prefect import flow, get_run_logger

from flows.campaign import Campaign, load_campaign
from flows.evaluate import evaluate_checkpoint
from flows.runs import all_runs
from infra.errors import StayerError
from infra.locks import LockHeldError, exclusive
from tasks.checkpoints import publish, unpublished
from tasks.stages import stage
from tasks.stop import StoppedError


@flow(name="publish-checkpoints", flow_run_name="{run}")
def publish_checkpoints(run: str = "all", wait_s: float = 0) -> list[int]:
    """Publish the committed checkpoints of one run, or of all runs; those already published stay as they are.

    Args:
        run: run id, or `all`.
        wait_s: how long to wait for another flow that is publishing the same run.

    Returns:
        The steps that were published.

    Raises:
        StayerError: some runs could not be published; the others were.
    """
    names = [one.run_id for one in all_runs()] if run == "all" else [run]
    published: list[int] = []
    failed: dict[str, Exception] = {}
    for name in names:
        try:
            campaign = load_campaign(name)
            with exclusive(campaign.run.path / "publish.lock", what="publishing", wait_s=wait_s):
                published += _publish_pending(campaign)
        except LockHeldError:
            continue  # another flow is at it; what it does not see yet, the next one will
        except Exception as err:
            if run != "all":
                raise
            failed[name] = err
    if failed:
        raise StayerError("; ".join(f"{name} could not be published: {err}" for name, err in failed.items()))
    return published


def _publish_pending(campaign: Campaign) -> list[int]:
    job, run = campaign.job, campaign.run
    published = []
    for checkpoint in unpublished(run):
        with stage("publish", run):
            good = publish(str(run.path), checkpoint.step, job.checkpoint.store)
        if not good:
            continue
        published.append(checkpoint.step)
        if job.evaluation.every_checkpoint:
            _evaluate(campaign, checkpoint.step)
    campaign.tracking.sync()
    return published


def _evaluate(campaign: Campaign, step: int) -> None:
    try:
        evaluate_checkpoint(campaign.run.run_id, step)
    except StoppedError:
        raise
    except StayerError as err:  # a failed evaluation is told, and never stops training
        if not campaign.run.checkpoint(step).exists():
            campaign.run.record_event("evaluation_skipped", step=step, why="superseded by newer checkpoints")
            return
        campaign.run.record_event("evaluation_failed", step=step, error=err.message)
        get_run_logger().warning("%s", err.message)
