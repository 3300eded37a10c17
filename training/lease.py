"""Who may write to a run directory. A token that only grows fences off whoever was replaced."""

import os
import socket
import time

from pydantic import BaseModel

from infra import storage
from infra.errors import StayerError
from training.rundir import RunDir


class Lease(BaseModel, frozen=True):
    """`lease.json`."""

    owner: str
    """The attempt's mark."""
    host: str
    pid: int
    time_s: float
    """When it was taken, wall clock."""
    token: int
    """The attempt's number."""


class LeaseLostError(StayerError):
    """A newer attempt owns the run: nothing may be committed any more."""


def take(run: RunDir, *, owner: str, token: int) -> Lease:
    """Make `token` the only one that may commit.

    Raises:
        LeaseLostError: an equal or newer token exists.
    """
    current = read(run)
    if current is not None and current.token >= token:
        raise LeaseLostError(f"run {run.run_id} is held by attempt {current.token} on {current.host}, not {token}")
    lease = Lease(owner=owner, host=socket.gethostname(), pid=os.getpid(), time_s=time.time(), token=token)
    storage.write_json(str(run.lease_file), lease.model_dump())
    return lease


def read(run: RunDir) -> Lease | None:
    """The lease as it stands, or None if nobody ever took it."""
    if not run.lease_file.is_file():
        return None
    return Lease.model_validate(storage.read_json(str(run.lease_file)))


def check(run: RunDir, *, token: int) -> None:
    """Make sure that `token` is still the run's.

    Raises:
        LeaseLostError: a newer attempt has taken over.
    """
    current = read(run)
    if current is None or current.token != token:
        held = f"attempt {current.token} on {current.host}" if current else "nobody"
        raise LeaseLostError(f"run {run.run_id} is held by {held}: attempt {token} may not commit")
