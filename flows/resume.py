"""Go on with a run whose campaign ended early: asked for by a person, or by the failure automation."""

from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run

from flows.failures import claim_failure, find_failure
from flows.pipeline import continued_training
from flows.runs import find_run
from infra.errors import InputError
from training.rundir import RunDir


@flow(name="resume", flow_run_name="resume-{run}{failed_run}")
def resume(run: str = "", failed_run: str = "") -> str | State[Any]:
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
        return _go_on(find_run(run), by_hand=True)
    if not failed_run:
        raise InputError("nothing to resume: give run or failed_run")
    failure = find_failure(failed_run.removeprefix("prefect.flow-run."))
    by = str(flow_run.id or "")
    refusal = claim_failure(failure, by=by) if failure else "it carried no campaign of this home folder"
    if failure is not None and not refusal:
        return _go_on(failure.run, by_hand=False)
    done = f"{failed_run} is not resumed: {refusal}"
    get_run_logger().info(done)
    return done


def _go_on(run: RunDir, *, by_hand: bool) -> str | State[Any]:
    """Carry the campaign on; if it is stopped, this flow is as well."""
    state = continued_training(str(run.job_file), run_id=run.run_id, by_hand=by_hand, return_state=True)
    if state.is_cancelled():
        return state
    state.result()  # raises what it ended with
    return f"resumed {run.run_id}"
