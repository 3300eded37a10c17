"""From an exception to the reason why an attempt ends, and to the files that tell it."""

import os
import re
import socket
import time
import traceback
from pathlib import Path

from infra import storage
from infra.errors import InputError
from training.exits import ExitReason, ExitRecord
from training.lease import LeaseLostError
from training.rundir import RunDir

_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)
_PEER_LOST = re.compile(
    r"connection (closed|reset|refused)|closed by peer|broken pipe|remote process|connectFullMesh", re.IGNORECASE
)


def classify(err: BaseException) -> tuple[ExitReason, bool]:
    """The reason behind an exception, and whether it is secondary: the echo of a failure somewhere else.

    A rank that lost a peer or waited for one in vain knows only that; why is for the peer to say. A lost connection is
    `killed` (the peer went without a word), a wait in vain is `collective_timeout`.
    """
    import torch
    import torch.distributed as dist

    from training.checkpoint import SaveFailedError
    from training.checkpoint_manifest import DamagedCheckpointError
    from training.loop import DataError, DivergedError

    if isinstance(err, SaveFailedError) and isinstance(err.__cause__, RuntimeError):
        return classify(err.__cause__)  # a save that lost a peer is an echo as any other
    if isinstance(err, DivergedError):
        return ExitReason.DIVERGED, not err.is_cause
    if isinstance(err, DataError):
        return ExitReason.DATA_ERROR, False
    if isinstance(err, InputError):
        return ExitReason.CONFIG_ERROR, False
    if isinstance(err, LeaseLostError | SaveFailedError | DamagedCheckpointError):
        return ExitReason.STORAGE_ERROR, False
    if isinstance(err, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(err):
        return ExitReason.OUT_OF_MEMORY, False
    if (
        isinstance(err, dist.DistBackendError | dist.DistNetworkError | dist.DistStoreError)
        or type(err) is RuntimeError
    ):
        if _PEER_LOST.search(str(err)):
            return ExitReason.KILLED, True
        if _TIMED_OUT.search(str(err)) or isinstance(err, dist.DistBackendError):
            return ExitReason.COLLECTIVE_TIMEOUT, True
    if isinstance(err, OSError):
        return ExitReason.STORAGE_ERROR, False
    return ExitReason.INTERNAL_ERROR, False


def exit_record(reason: ExitReason, *, step: int, rank: int, err: BaseException | None = None) -> ExitRecord:
    """What to tell about the end of an attempt."""
    message, trace = "", None
    if err is not None:
        message = f"{type(err).__name__}: {err}".splitlines()[0]
        trace = "".join(traceback.format_exception(err))
    return ExitRecord(
        reason=reason,
        step=step,
        rank=rank,
        host=socket.gethostname(),
        message=message,
        exception=trace,
        time_s=time.time(),
    )


def write_exit(run: RunDir, attempt: int, record: ExitRecord, *, secondary: bool = False) -> None:
    """Tell why an attempt ends.

    The first to know the cause writes `exit.json`; later ones change nothing. An echo goes to `exit-rank<r>.json`,
    which counts only if the attempt is over and nobody wrote `exit.json`.
    """
    folder = run.attempt(attempt)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"exit-rank{record.rank}.json" if secondary else "exit.json"
    _create_once(folder / name, record.model_dump_json(indent=2) + "\n")


def _create_once(file: Path, text: str) -> None:
    """Create a file whole, or leave the one that is there. Linking is atomic and never replaces."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    storage.write_text(str(temporary), text)
    try:
        file.hardlink_to(temporary)
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)
