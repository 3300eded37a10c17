"""Training processes on this machine: torchrun, detached, so that training outlives the flow that started it."""

import math
import os
import sys
from pathlib import Path

from infra.config import ClusterConfig
from infra.launch.detached import DetachedProcess, request_stop, start_detached
from infra.launch.processes import MARK_VARIABLE

__all__ = ["launch", "request_stop"]

WORKER = "training.worker"
"""Module that every rank runs."""


def launch(run_dir: Path, *, number: int, mark: str, cluster: ClusterConfig, module: str = WORKER) -> DetachedProcess:
    """Start an attempt and return its torchrun agent at once; `request_stop` of its pid reaches all ranks.

    Logs go to ``attempts/<number>/``: ``rank-<r>.log`` for each rank, ``torchrun.log`` for the agent.

    Args:
        run_dir: the run directory, handed to every rank.
        number: the attempt's number, `STAYER_ATTEMPT_NUMBER` for the ranks.
        mark: what the attempt's processes are known by (see `infra.launch.processes`).
        cluster: how many ranks, and how long they may take to stop.
        module: what every rank runs as ``python -m module run_dir``.
    """
    folder = run_dir.resolve() / "attempts" / f"{number:04d}"
    folder.mkdir(parents=True, exist_ok=True)
    command = [*_torchrun(cluster, folder), "-m", "infra.launch.rank", str(folder), module, str(run_dir.resolve())]
    return start_detached(command, environment=_environment(number, mark), log=folder / "torchrun.log")


def _torchrun(cluster: ClusterConfig, folder: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        # The agent's store listens on a port that the kernel picks when it binds, and the ranks meet at that store:
        # no port is ever chosen first and bound later, so two attempts cannot collide.
        "--standalone",
        "--local-addr=127.0.0.1",
        f"--nproc-per-node={cluster.processes_per_node}",
        "--max-restarts=0",  # a restart is a new attempt, decided by recovery from what happened
        "--monitor-interval=0.1",
        f"--log-dir={folder / 'torchelastic'}",  # its error files; by default they pile up in the temporary folder
        f"--shutdown-timeout={math.ceil(cluster.stop_budget_s)}",
    ]


def _environment(number: int, mark: str) -> dict[str, str]:
    chosen = {
        "OMP_NUM_THREADS": "1",
        # By default gloo talks over the address behind the host name, which a laptop loses with its network.
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    }
    fixed = {
        MARK_VARIABLE: mark,
        "STAYER_ATTEMPT_NUMBER": str(number),
        "PYTHONUNBUFFERED": "1",
        "PYTHONSAFEPATH": "1",  # a folder named `training` where the flow happens to run is not ours
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    return {**chosen, **os.environ, **fixed}
