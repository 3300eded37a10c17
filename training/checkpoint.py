"""Saving and loading of checkpoints: a copy between two steps, everything else in the background."""

import contextlib
import logging
import math
import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from infra import storage
from infra.errors import StayerError
from training import checkpoint_manifest
from training.checkpoint_manifest import CheckpointFile, CheckpointManifest
from training.config import CheckpointConfig
from training.lease import LeaseLostError
from training.model import PackedCausalLM
from training.rundir import Inputs, RunDir
from training.train_state import HostCopy, all_finite, model_tensors, optimizer_tensors, set_optimizer_step

log = logging.getLogger(__name__)


class SaveFailedError(StayerError):
    """A checkpoint that had to exist could not be written."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a step; what a checkpoint holds besides tensors."""

    step: int = 0
    position: int = 0
    """Sequences consumed."""
    tokens: int = 0
    """Effective tokens consumed."""
    ledger_head: str = ""


@dataclass
class _Save:
    """One save on its way."""

    step: int
    stall_s: float
    thread: threading.Thread = field(init=False)
    error: Exception | None = None
    """Why it failed; None while running and after a commit."""


@dataclass(frozen=True)
class _Written:
    """What one rank tells the others when its part is on disk."""

    files: tuple[CheckpointFile, ...]
    finite: bool
    error: str | None


class CheckpointSaver:
    """Saves the state of a run, one save at a time. Every rank holds one and calls it at the same steps."""

    def __init__(
        self, run: RunDir, inputs: Inputs, config: CheckpointConfig, *, token: int, group: dist.ProcessGroup
    ) -> None:
        """
        Args:
            run: where checkpoints go.
            inputs: identity of data and job.
            config: retention.
            token: lease token of this attempt.
            group: a gloo group of all ranks that nothing else uses: a save runs beside training, and collectives of two
                threads on one group would mix.
        """
        self._run, self._inputs, self._config, self._token, self._group = run, inputs, config, token, group
        self._rank, self._world_size = dist.get_rank(group), dist.get_world_size(group)
        self._copy = HostCopy()
        self._save: _Save | None = None

    @property
    def busy(self) -> bool:
        """Whether this rank's part of a save is still on its way."""
        return self._save is not None and self._save.thread.is_alive()

    def start(
        self,
        model: PackedCausalLM,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        metrics: dict[str, float],
    ) -> float:
        """Copy the state as it is now and save it in the background; returns the seconds training was held up.

        No save may be running on any rank.
        """
        assert not self.busy, "one save at a time"
        begin = time.perf_counter()
        state = self._copy.take(model_tensors(model) | optimizer_tensors(model, optimizer))
        save = _Save(progress.step, time.perf_counter() - begin)
        save.thread = threading.Thread(
            target=self._run_save, args=(save, state, progress, metrics), name=f"save-{progress.step}", daemon=True
        )
        self._save = save
        save.thread.start()
        return time.perf_counter() - begin

    def raise_if_fenced(self) -> None:
        """Stop training for an attempt that is no longer the run's.

        Raises:
            LeaseLostError: the last save found a newer attempt.
        """
        if self._save is not None and isinstance(self._save.error, LeaseLostError):
            raise self._save.error

    def wait(self, timeout_s: float, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Wait for the save on its way, calling `while_waiting` about once a second.

        Raises:
            SaveFailedError: it did not end in time; what it wrote so far never becomes a checkpoint by itself.
        """
        deadline = time.monotonic() + timeout_s
        while self._save is not None and self._save.thread.is_alive():
            while_waiting()
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise SaveFailedError(
                    f"the checkpoint after step {self._save.step} was not written within {timeout_s:g} s",
                    hint="raise checkpoint.save_timeout_s, or look at the disk",
                )
            self._save.thread.join(min(1.0, remaining_s))

    def wait_for_commit(self, timeout_s: float, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Wait for the save on its way and make sure that it was committed.

        Raises:
            SaveFailedError: it was not.
            LeaseLostError: because a newer attempt owns the run.
        """
        self.wait(timeout_s, while_waiting)
        self.raise_if_fenced()
        if self._save is not None and self._save.error is not None:
            error = self._save.error
            raise SaveFailedError(f"the checkpoint after step {self._save.step} failed: {error}") from error

    def _run_save(self, save: _Save, state: dict[str, Tensor], progress: Progress, metrics: dict[str, float]) -> None:
        """Body of the background thread. Nothing that goes wrong here stops training."""
        try:
            self._write_and_commit(save, state, progress, metrics)
        except Exception as err:
            save.error = err
            log.warning("the checkpoint after step %d failed: %s", save.step, err)
            if self._rank == 0:
                folder = checkpoint_manifest.temporary_folder(self._run, save.step, self._token)
                shutil.rmtree(folder, ignore_errors=True)  # half of it would keep a full disk full
                with contextlib.suppress(OSError):  # the disk may be the reason
                    self._run.record_event("checkpoint_failed", step=save.step, reason=str(err))

    def _write_and_commit(
        self, save: _Save, state: dict[str, Tensor], progress: Progress, metrics: dict[str, float]
    ) -> None:
        begin = time.perf_counter()
        folder = checkpoint_manifest.temporary_folder(self._run, save.step, self._token)
        parts = self._gather(self._write(folder, state))
        write_s = time.perf_counter() - begin
        verdict: Exception | None = None
        if self._rank == 0:
            try:
                self._commit(folder, parts, progress, metrics)
                self._report(save, parts, write_s, time.perf_counter() - begin - write_s)
            except Exception as err:  # every rank waits for the verdict, whatever it is
                verdict = err
        verdicts: list[Any] = [verdict]
        dist.broadcast_object_list(verdicts, group_src=0, group=self._group)
        if verdicts[0] is not None:
            raise verdicts[0]

    def _write(self, folder: Path, state: dict[str, Tensor]) -> _Written:
        """Write this rank's part and hash it. Errors travel as a value: every rank has to take part in the exchange."""
        try:
            writer = FileSystemWriter(folder, overwrite=False)
            with _plain_errors():
                state_dict_saver.save(dict(state), storage_writer=writer, process_group=self._group)
            own = sorted(f for f in folder.iterdir() if f.name.startswith(f"__{self._rank}_"))
            if self._rank == 0:
                own.append(folder / ".metadata")
            files = tuple(
                CheckpointFile(name=f.name, size_bytes=f.stat().st_size, sha256=storage.sha256_file(str(f)))
                for f in own
            )
            return _Written(files, all_finite(state), None)
        except Exception as err:
            return _Written((), False, f"rank {self._rank}: {type(err).__name__}: {err}")

    def _gather(self, written: _Written) -> list[_Written]:
        """What every rank wrote.

        Raises:
            SaveFailedError: one of them could not.
        """
        parts: list[Any] = [None] * self._world_size
        dist.all_gather_object(parts, written, group=self._group)
        if errors := [part.error for part in parts if part.error]:
            raise SaveFailedError(errors[0])
        return parts

    def _commit(self, folder: Path, parts: list[_Written], progress: Progress, metrics: dict[str, float]) -> None:
        finite = all(part.finite for part in parts) and all(map(math.isfinite, metrics.values()))
        manifest = CheckpointManifest(
            step=progress.step,
            position=progress.position,
            tokens=progress.tokens,
            dataset_id=self._inputs.dataset_id,
            job_hash=self._inputs.job_hash,
            world_size=self._world_size,
            token=self._token,
            ledger_head=progress.ledger_head,
            metrics=metrics,
            healthy=finite,
            time_s=time.time(),
            files=tuple(file for part in parts for file in part.files),
        )
        storage.fsync_folder(folder)
        checkpoint_manifest.commit(self._run, folder, manifest)

    def _report(self, save: _Save, parts: list[_Written], write_s: float, commit_s: float) -> None:
        """Record the commit, then clean up. The checkpoint exists by now, so trouble here is not its failure."""
        size_bytes = sum(file.size_bytes for part in parts for file in part.files)
        try:
            self._run.record_event(
                "checkpoint_committed",
                step=save.step,
                stall_s=round(save.stall_s, 6),
                write_s=round(write_s, 6),
                commit_s=round(commit_s, 6),
                size_bytes=size_bytes,
            )
            checkpoint_manifest.apply_retention(self._run, self._config, newest=save.step)
        except OSError as err:
            log.warning("after the commit of step %d: %s", save.step, err)


def load_checkpoint(
    folder: Path,
    manifest: CheckpointManifest,
    model: PackedCausalLM,
    optimizer: torch.optim.Optimizer,
    *,
    group: dist.ProcessGroup,
) -> Progress:
    """Load model and optimizer, sharded in whatever way, from a verified checkpoint; returns where it stands."""
    state = model_tensors(model) | optimizer_tensors(model, optimizer)
    with _plain_errors():
        state_dict_loader.load(dict(state), storage_reader=FileSystemReader(folder), process_group=group)
    set_optimizer_step(model, optimizer, manifest.step)
    return Progress(manifest.step, manifest.position, manifest.tokens, manifest.ledger_head)


def load_model_weights(folder: str | os.PathLike[str], model: PackedCausalLM) -> CheckpointManifest:
    """Verify a checkpoint and load its weights into an unsharded model of one process.

    Raises:
        DamagedCheckpointError: it is not what its manifest says.
    """
    path = Path(folder)
    manifest = checkpoint_manifest.read_manifest(path)
    checkpoint_manifest.verify(path, manifest)
    with _plain_errors(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # it warns even where told so
        state_dict_loader.load(dict(model_tensors(model)), storage_reader=FileSystemReader(path), no_dist=True)
    return manifest


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise what happened instead of torch's CheckpointException, which is no Exception and passes every handler."""
    try:
        yield
    except CheckpointException as err:
        cause, _ = next(iter(err.failures.values()))
        raise cause from err
