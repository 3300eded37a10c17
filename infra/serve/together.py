"""All services at once, for as long as somebody looks at them."""

import contextlib
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

from infra.errors import StayerError
from infra.serve.servers import POOL, mlflow_service, prefect_service, prefect_worker, worker_service
from infra.serve.service import Record, in_use, log_file

_POLL_S = 0.5


@dataclass(frozen=True)
class Services:
    """The running services."""

    prefect_api_url: str
    """What PREFECT_API_URL wants."""
    prefect_url: str
    """Prefect's page."""
    mlflow_url: str
    """MLflow's page, and what a tracking URI wants."""
    logs: dict[str, Path]
    """Log file of each service, by name."""
    records: dict[str, Record]
    """Process of each service, by name."""

    def wait(self) -> None:
        """Block until SIGINT or SIGTERM.

        Raises:
            StayerError: one of the services died.
        """
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                for name, record in self.records.items():
                    if not record.is_alive():
                        raise StayerError(f"the {name} service died", hint=f"its log is {self.logs[name]}")
                time.sleep(_POLL_S)


@contextlib.contextmanager
def up(home: Path) -> Iterator[Services]:
    """Run Prefect's server, MLflow's server and a worker; stop them in reverse order when the block ends.

    Services that somebody else uses too go on until they leave. Within the block SIGTERM is a KeyboardInterrupt,
    as SIGINT is; while the services are being stopped, both are ignored. Call it in the main thread.

    Raises:
        StayerError: a service does not start.
    """
    folder = home / "services"
    with _StopSignals() as signals, contextlib.ExitStack() as stack:
        try:
            prefect = stack.enter_context(in_use(prefect_service(home), folder))
            mlflow = stack.enter_context(in_use(mlflow_service(home), folder))
            api_url = f"{prefect.url}/api"
            worker = stack.enter_context(prefect_worker(home, api_url))
            services = (prefect_service(home), mlflow_service(home), worker_service(home, api_url, POOL))
            yield Services(
                prefect_api_url=api_url,
                prefect_url=prefect.url,
                mlflow_url=mlflow.url,
                logs={service.name: log_file(service, folder) for service in services},
                records={"prefect": prefect, "mlflow": mlflow, "worker": worker},
            )
        finally:
            signals.ignore()


class _StopSignals:
    """SIGINT and SIGTERM raise KeyboardInterrupt, once; then they are ignored, so that stopping is not cut short."""

    def __enter__(self) -> Self:
        self._former = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        for number in self._former:
            signal.signal(number, signal.SIG_IGN)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.ignore()
        raise KeyboardInterrupt
