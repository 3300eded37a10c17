"""Deployments and the failure automation on a Prefect server."""

import subprocess
import sys
from importlib.resources import as_file, files

import yaml
from prefect.automations import Automation
from prefect.client.orchestration import get_client
from prefect.events.actions import RunDeployment
from prefect.events.schemas.automations import EventTrigger, Posture

from infra.errors import StayerError
from infra.serve import POOL

AUTOMATION = "stayer: resume a failed campaign"
_RESUME = "resume/on-failure"
_CAMPAIGN_FLOWS = ["continued-training", "resume"]


def deploy_all() -> list[str]:
    """Create or update every deployment of `deployments/prefect.yaml` and the failure automation.

    Returns:
        Their names.

    Raises:
        StayerError: Prefect refused, with its words.
    """
    _make_work_pool()
    with as_file(files("deployments") / "prefect.yaml") as file:
        _prefect("deploy", "--all", "--prefect-file", str(file))
        names = [f"{d['entrypoint']} as {d['name']}" for d in yaml.safe_load(file.read_text())["deployments"]]
    _make_automation()
    return [*names, AUTOMATION]


def _make_work_pool() -> None:
    """The pool exists already where a worker runs; a server without one can still take deployments."""
    _prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")


def _prefect(*arguments: str) -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise StayerError(f"prefect {arguments[0]} failed: {words}", hint="is PREFECT_API_URL right?")


def _make_automation() -> None:
    """Whatever campaign failed or crashed is offered to the resume flow, which takes each failure once."""
    with get_client(sync_client=True) as client:
        resume = client.read_deployment_by_name(_RESUME)
        for known in client.read_automations_by_name(AUTOMATION):
            client.delete_automation(known.id)
    trigger = EventTrigger(
        posture=Posture.Reactive,
        expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related={"prefect.resource.role": "flow", "prefect.resource.name": _CAMPAIGN_FLOWS},
        for_each={"prefect.resource.id"},
        threshold=1,
    )
    failed_run = {"__prefect_kind": "jinja", "template": "{{ event.resource.id }}"}
    action = RunDeployment(source="selected", deployment_id=resume.id, parameters={"failed_run": failed_run})
    Automation(
        name=AUTOMATION,
        description="Starts resume/on-failure for a campaign whose flow run failed or crashed.",
        trigger=trigger,
        actions=[action],
    ).create()
