"""What may be said about the machines: the section ``cluster`` of a job file."""

from typing import Literal

from pydantic import BaseModel, field_validator

from infra.quantities import PositiveCount, PositiveNumber


class ClusterConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Where training runs and how long it may take to stop."""

    hardware: str = "cpu"
    """Kind of processor a training process runs on."""
    nodes: PositiveCount = 1
    """Machines; the local launcher knows only this one."""
    processes_per_node: PositiveCount = 1
    """Training processes on each machine: one a GPU, or as many as the cores can feed."""
    launcher: Literal["local"] = "local"
    """How the processes are started: `local` runs torchrun on this machine."""
    stop_budget_s: PositiveNumber = 120
    """Seconds from the stop signal to SIGKILL, at every layer: the last checkpoint has to fit."""

    @field_validator("nodes")
    @classmethod
    def _one_node(cls, nodes: int) -> int:
        if nodes != 1:
            raise ValueError(f"the local launcher starts processes on this machine only, not on {nodes}: use 1")
        return nodes
