"""Score checkpoints on held-out text."""

from prefect import flow

from flows.campaign import load_campaign
from infra.errors import InputError
from tasks.evaluation import evaluate
from tasks.stages import stage
from training.checkpoint_manifest import list_checkpoints


@flow(name="evaluate-checkpoint", flow_run_name="{run}-step-{step}")
def evaluate_checkpoint(run: str, step: int | None = None) -> dict[str, float]:
    """Score one checkpoint of a run; evaluation reads, it never changes training.

    Args:
        run: run id or path.
        step: optimizer step of the checkpoint, 0 for the starting model; by default the newest one.

    Returns:
        Perplexity by role (domain, general) and by source.
    """
    campaign = load_campaign(run)
    steps = [c.step for c in list_checkpoints(campaign.run)]
    if step is None and not steps:
        raise InputError(f"run {campaign.run.run_id} has no checkpoint yet", hint="step 0 is the starting model")
    step = steps[-1] if step is None else step
    if step not in (0, *steps):
        known = ", ".join(map(str, steps))
        raise InputError(f"run {campaign.run.run_id} has no checkpoint of step {step}", hint=f"steps: 0, {known}")
    with stage("evaluate", campaign.run):
        scores = evaluate(str(campaign.run.path), step)
    campaign.tracking.sync()
    return scores
