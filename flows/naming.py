"""How flow runs are called on Prefect's page."""

from pathlib import Path

from prefect.runtime import flow_run


def name_of_run() -> str:
    """The run a flow works in, or else the job file it was given."""
    asked = flow_run.parameters
    return str(asked.get("run_id") or asked.get("run") or Path(asked["job"]).stem)
