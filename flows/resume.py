"""Go on with a run whose campaign ended early: asked for by a person, or by the failure automation."""

from prefect import flow, get_run_logger

from flows.campaign import find_run
from flows.failures import Failure, claim_failure, find_failure
from flows.pipeline import continued_training


@flow(name="resume", flow_run_name="resume-{run}{failed_run}")
def resume(run: str = "", failed_run: str = "") -> str:
    """Resume a run, at most once for each failed flow run.

    A training process that is still alive is attached to, not started again.

    Args:
        run: run id or path, when a person asks.
        failed_run: resource id (``prefect.flow-run.<uuid>``) of the campaign that failed, when the automation
            asks; the run is found through its events.

    Returns:
        What was done, in words.
    """
    log = get_run_logger()
    if run:
        continued_training(str(find_run(run).job_file), run_id=find_run(run).run_id)
        return f"resumed {run}"
    failure: Failure | None = find_failure(failed_run.removeprefix("prefect.flow-run."))
    if failure is None:
        return _told(log, f"{failed_run} is no campaign of this home folder: nothing to resume")
    refusal = claim_failure(failure)
    if refusal:
        return _told(log, f"{failure.run.run_id} is not resumed: {refusal}")
    continued_training(str(failure.run.job_file), run_id=failure.run.run_id, by_hand=False)
    return f"resumed {failure.run.run_id}"
