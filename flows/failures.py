"""Which run a failed flow run belonged to, and whether it may be resumed without a person."""

import os
from dataclasses import dataclass

from flows.job_file import load_job
from flows.runs import all_runs
from infra.locks import LockHeldError, exclusive
from training.rundir import RunDir


@dataclass(frozen=True)
class Failure:
    """A campaign whose flow run failed or crashed."""

    run: RunDir
    flow_run: str
    """Id of the failed flow run."""


def find_failure(flow_run: str) -> Failure | None:
    """The campaign that a flow run carried, found through the events of the runs in the home folder."""
    for run in all_runs():
        # A base job's campaign is part of another one, which resumes it: only a flow run's own campaign counts.
        for event in reversed(run.events("campaign_started")):
            if flow_run in (event["flow_run"], event["root_flow_run"]) and not event["part_of_another"]:
                return Failure(run, event["root_flow_run"] or flow_run)
        # A resume that died before its campaign began.
        if any(event["by"] == flow_run for event in run.events("resume_claimed")):
            return Failure(run, flow_run)
    return None


def claim_failure(failure: Failure, *, by: str) -> str:
    """Take charge of a failure: at most one caller ever gets it.

    Args:
        failure: what failed.
        by: id of the flow run that will resume it.

    Returns:
        An empty string when the run is to be resumed, else why it is not.
    """
    run = failure.run
    refusal = _refusal(run)
    if refusal:
        return refusal
    folder = run.path / "resumes"
    folder.mkdir(exist_ok=True)
    budget = load_job(run.job_file).recovery.max_resumes
    if len(list(folder.iterdir())) >= budget:
        return f"its budget of {budget} automatic resumes is used up"
    try:
        # Exclusive creation: the same event delivered twice finds the failure taken.
        os.close(os.open(folder / failure.flow_run, os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        return "this failure was already taken care of"
    run.record_event("resume_claimed", flow_run=failure.flow_run, by=by)
    return ""


def _refusal(run: RunDir) -> str:
    """Why a run needs no resume, or must not have one without a person."""
    try:
        with exclusive(run.path / "campaign.lock", what="looking after a failure"):
            pass
    except LockHeldError as err:
        return f"a flow is still carrying it out ({err.message})"
    events = run.events()
    start = max(i for i, e in enumerate(events) if e["event"] == "campaign_started")
    for event in events[start:]:
        if event["event"] == "campaign_finished" and event["outcome"] in ("completed", "stopped"):
            return f"it {event['outcome']}"
        if event["event"] == "campaign_finished" and event["permanent"]:
            return str(event["why"])
    return ""
