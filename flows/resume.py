"""Go on with a run whose campaign ended early: asked for by a person, or by the failure automation."""

from prefect import flow, get_run_logger

from flows.failures import claim_failure, find_failure
from flows.pipeline import continued_training
from flows.runs import find_run
from infra.errors import InputError


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
    if run:
        directory = find_run(run)
        continued_training(str(directory.job_file), run_id=directory.run_id)
        return f"resumed {directory.run_id}"
    if not failed_run:
        raise InputError("nothing to resume: give run or failed_run")
    failure = find_failure(failed_run.removeprefix("prefect.flow-run."))
    refusal = claim_failure(failure) if failure else "it carried no campaign of this home folder"
    if failure is None or refusal:
        done = f"{failed_run} is not resumed: {refusal}"
    else:
        continued_training(str(failure.run.job_file), run_id=failure.run.run_id, by_hand=False)
        done = f"resumed {failure.run.run_id}"
    get_run_logger().info(done)
    return done
