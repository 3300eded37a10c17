import pytest
import torch
import torch.distributed as dist

from infra.errors import InputError
from training.checkpoint import SaveFailedError
from training.exits import ExitReason
from training.failures import classify, exit_record, write_exit
from training.lease import LeaseLostError
from training.loop import DataError, DivergedError

TIMEOUT = "[/pytorch/third_party/gloo/...] Timed out waiting 60000ms for recv operation to complete"
CLOSED = "[/pytorch/third_party/gloo/...] Connection closed by peer [127.0.0.1]:23456"
RESET = "[../third_party/gloo/...] Read error [127.0.0.1]:5678: Connection reset by peer"


@pytest.mark.parametrize(
    ("err", "reason", "secondary"),
    [
        (InputError("x"), ExitReason.CONFIG_ERROR, False),
        (DataError("x"), ExitReason.DATA_ERROR, False),
        (MemoryError(), ExitReason.OUT_OF_MEMORY, False),
        (torch.OutOfMemoryError("CUDA out of memory"), ExitReason.OUT_OF_MEMORY, False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), ExitReason.OUT_OF_MEMORY, False),
        (RuntimeError(TIMEOUT), ExitReason.COLLECTIVE_TIMEOUT, True),
        (dist.DistBackendError("NCCL watchdog thread"), ExitReason.COLLECTIVE_TIMEOUT, True),
        (RuntimeError(CLOSED), ExitReason.KILLED, True),
        (RuntimeError(RESET), ExitReason.KILLED, True),
        (dist.DistNetworkError("Connection reset by peer"), ExitReason.KILLED, True),
        (LeaseLostError("x"), ExitReason.STORAGE_ERROR, False),
        (SaveFailedError("x"), ExitReason.STORAGE_ERROR, False),
        (OSError(28, "No space left on device"), ExitReason.STORAGE_ERROR, False),
        (DivergedError("x"), ExitReason.DIVERGED, False),
        (DivergedError("x", is_cause=False), ExitReason.DIVERGED, True),
        (ValueError("a timeout of our own"), ExitReason.INTERNAL_ERROR, False),
        (RuntimeError("shape mismatch"), ExitReason.INTERNAL_ERROR, False),
    ],
)
def test_an_exception_tells_why_the_attempt_ends(err, reason, secondary):
    assert classify(err) == (reason, secondary)


def test_the_first_cause_stands_and_echoes_do_not_overwrite_it(run_dir):
    echo = exit_record(ExitReason.KILLED, step=3, rank=0, err=RuntimeError(CLOSED))
    write_exit(run_dir, 1, echo, secondary=True)
    assert run_dir.exit_record(1) is None
    cause = exit_record(ExitReason.DATA_ERROR, step=3, rank=1, err=DataError("row 7"))
    write_exit(run_dir, 1, cause)
    write_exit(run_dir, 1, exit_record(ExitReason.INTERNAL_ERROR, step=3, rank=0))
    assert run_dir.exit_record(1) == cause
    assert run_dir.peer_exit_records(1) == [echo]
    assert {f.name for f in run_dir.attempt(1).iterdir()} == {"exit.json", "exit-rank0.json"}
