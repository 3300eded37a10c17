"""The servers Stayer can run for itself: Prefect with a worker, and MLflow. All on loopback, all state in one folder.

They are run through their own command lines: nothing here imports them.
"""

import contextlib
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from infra.errors import StayerError
from infra.serve.service import HOST, Record, Service, in_use, kept_alive

POOL = "stayer"
"""The work pool of Stayer's deployments."""
_POOL_TIMEOUT_S = 60
_QUIET = {"DO_NOT_TRACK": "1"}


@contextlib.contextmanager
def prefect_api(home: Path) -> Iterator[str]:
    """A Prefect server for as long as the block lasts; yields what PREFECT_API_URL wants.

    Should it die meanwhile, it is started again at the same address.

    Raises:
        StayerError: it does not start.
    """
    with kept_alive(prefect_service(home), home / "services") as record:
        yield f"{record.url}/api"


@contextlib.contextmanager
def mlflow_server(home: Path) -> Iterator[str]:
    """An MLflow server over ``<home>/mlflow.db`` and ``<home>/mlartifacts``; yields its address.

    It shows runs that were written to the database directly, and their artifacts wherever they lie on this machine.

    Raises:
        StayerError: it does not start.
    """
    with in_use(mlflow_service(home), home / "services") as record:
        yield record.url


@contextlib.contextmanager
def prefect_worker(home: Path, api_url: str, pool: str = POOL) -> Iterator[Record]:
    """A Prefect worker that runs flows as processes of this machine; its work pool exists when the block begins.

    A worker that is stopped kills the flows it runs, and Prefect goes on calling them Running; training, a detached
    process, goes on in fact.

    Raises:
        StayerError: it does not start.
    """
    with in_use(worker_service(home, api_url, pool), home / "services") as record:
        _await_pool(api_url, pool)
        yield record


def prefect_service(home: Path) -> Service:
    """Prefect's server with its scheduler and automations, on a sqlite file."""
    state = {
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        **_QUIET,
    }
    return Service(
        name="prefect",
        command=lambda port: _module("prefect", "server", "start", "--host", HOST, "--port", str(port)),
        port=4200,
        health="/api/health",
        environment=lambda port: state,
        without=("PREFECT_API_URL", "PREFECT_API_KEY"),
    )


def mlflow_service(home: Path) -> Service:
    """MLflow's server with one worker process; its job runner would start eight more."""
    options = [
        *("--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}"),
        *("--artifacts-destination", (home / "mlartifacts").as_uri()),
    ]
    state = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", **_QUIET}
    return Service(
        name="mlflow",
        command=lambda port: _module("mlflow", "server", "--host", HOST, "--port", str(port), *options),
        port=5000,
        health="/health",
        environment=lambda port: state,
        without=("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"),
    )


def worker_service(home: Path, api_url: str, pool: str) -> Service:
    """Prefect's worker; its flows find the same home and the same API."""
    options = ["--type", "process", "--pool", pool, "--name", f"stayer-{socket.gethostname()}", "--with-healthcheck"]

    def environment(port: int) -> dict[str, str]:
        return {
            "PREFECT_API_URL": api_url,
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_CLIENT_MAX_RETRIES": "8",  # waits of 2, 4, … 256 s: the server may be away for minutes
            "PREFECT_WORKER_QUERY_SECONDS": "1",  # by default a run waits up to 10 s for its start
            "PREFECT_WORKER_WEBSERVER_HOST": HOST,
            "PREFECT_WORKER_WEBSERVER_PORT": str(port),
            "STAYER_HOME": str(home),
            **_QUIET,
        }

    return Service(
        name="worker",
        command=lambda port: _module("prefect", "--no-prompt", "worker", "start", *options),
        port=4201,
        health="/health",
        environment=environment,
    )


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def _await_pool(api_url: str, pool: str) -> None:
    """The worker creates its pool as it starts; deployments need it to be there."""
    deadline = time.monotonic() + _POOL_TIMEOUT_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with opener.open(f"{api_url}/work_pools/{pool}", timeout=2):
                return
        except (urllib.error.URLError, OSError) as err:
            if time.monotonic() > deadline:
                raise StayerError(f"work pool {pool} does not appear at {api_url} ({err})") from err
        time.sleep(0.1)
