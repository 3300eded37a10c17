"""The training loop: one optimizer step after the other, all ranks deciding alike."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from infra.errors import StayerError
from packing import ledger
from packing.loader import Loader, StepBatch
from packing.rows import ModelInputs
from training.checkpoint import CheckpointSaver, Progress
from training.config import TrainingJob
from training.exits import ExitReason
from training.length import RunLength
from training.model import PackedCausalLM
from training.parallel import World
from training.randomness import seed_step
from training.schedule import learning_rate
from training.telemetry import Recorder, StepTimes, peak_memory_gib
from training.train_state import local_part
from training.watchdog import Pulse


class DivergedError(StayerError):
    """Loss or gradient is not finite. Every rank raises it at the same step, before any weight has changed."""

    def __init__(self, message: str, *, hint: str = "", is_cause: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.is_cause = is_cause
        """Whether this rank is the one to blame (rank 0 where no single one is)."""


class DataError(StayerError):
    """The training data cannot be read, or is not the data the run was prepared for."""


@dataclass(frozen=True)
class Agreement:
    """What all ranks know after the one exchange at the end of a step."""

    loss: float
    """Mean token loss of the global batch."""
    grad_norm: float
    """Norm of the global gradient, before clipping."""
    num_bad_ranks: int
    """Ranks whose own loss is not finite."""
    stop: bool
    """A stop was asked for on any rank."""
    save_due: bool
    save_busy: bool
    """A save is still on its way on any rank."""

    @property
    def finite(self) -> bool:
        """Whether the optimizer may act."""
        return self.num_bad_ranks == 0 and math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass
class Trainer:
    """Everything a run's loop works with. All ranks hold one and call `train` together."""

    job: TrainingJob
    world: World
    length: RunLength
    num_replicas: int
    """Copies of each parameter on the mesh."""
    accumulate_locally: bool
    """Reduce gradients once a step instead of after every micro-batch."""
    model: PackedCausalLM
    optimizer: torch.optim.Optimizer
    loader: Loader
    saver: CheckpointSaver
    recorder: Recorder
    pulse: Pulse
    progress: Progress
    attempt: int
    stop_requested: Callable[[], bool]
    _last_save_s: float = field(default_factory=time.monotonic)
    _step_end_s: float = field(default_factory=time.perf_counter)

    def train(self) -> ExitReason:
        """Train to the end or to a stop request; either way the last step is in a committed checkpoint.

        Raises:
            DivergedError: loss or gradient norm is not finite; weights are those of the step before.
            LeaseLostError: a newer attempt owns the run.
            SaveFailedError: the last checkpoint could not be written.
        """
        first_step = self.progress.step + 1
        batches = iter(self.loader)
        while self.progress.step < self.length.total_steps:
            # The first step compiles and allocates: it may take as long as starting does.
            self.pulse.beat(self.progress.step, "training" if self.progress.step >= first_step else "first step")
            self.saver.raise_if_fenced()
            batch = _next(batches, self.progress.step + 1)
            times = StepTimes(input_wait_s=batch.wait_s)
            agreed = self._step(batch, times)
            is_last = self.progress.step == self.length.total_steps or agreed.stop
            self._save_if_needed(agreed, is_last, times)
            self._record(batch, agreed, times)
            if self.progress.step == first_step:
                self.recorder.event("first_step_done", step=first_step, attempt=self.attempt)
            if is_last:
                self.saver.wait_for_commit(self.job.checkpoint.save_timeout_s, self._beat_saving)
                break
        done = self.progress.step >= self.length.total_steps
        return ExitReason.COMPLETED if done else ExitReason.PREEMPTED

    def _step(self, batch: StepBatch, times: StepTimes) -> Agreement:
        """One optimizer step; `progress` moves on."""
        begin = time.perf_counter()
        step, config = self.progress.step + 1, self.job.training
        seed_step(config.seed, step, self.world.rank)
        loss = self._forward_backward(batch)
        gradients = [local_part(p.grad) for p in self.model.parameters() if p.grad is not None]
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()
        computed = time.perf_counter()
        agreed = self._agree(loss, gradients, step)
        exchanged = time.perf_counter()
        if not agreed.finite:
            raise _diverged(agreed, step, loss, self.world)
        _clip_(gradients, agreed.grad_norm, config.clip_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = self._learning_rate(step)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress = Progress(
            step=step,
            position=self.progress.position + batch.step_rows,
            tokens=self.progress.tokens + batch.effective_tokens,
            ledger_head=ledger.extend(self.progress.ledger_head, step, batch.sequence_ids),
        )
        times.comm_wait_s = exchanged - computed
        times.compute_s = computed - begin + time.perf_counter() - exchanged
        return agreed

    def _forward_backward(self, batch: StepBatch) -> Tensor:
        """Sum up the gradient of the global mean loss; returns this rank's part of that loss, on the device."""
        scale = 1.0 / max(1, batch.num_targets)
        loss = torch.zeros((), device=self.world.device)
        sharded = cast(FSDPModule, self.model)
        for index, inputs in enumerate(batch.micro_batches):
            is_last = index == len(batch.micro_batches) - 1
            sharded.set_is_last_backward(is_last)
            if self.accumulate_locally:
                sharded.set_requires_gradient_sync(is_last)
                sharded.set_reshard_after_backward(is_last)
            part = self.model(*_to_device(inputs, self.world.device)) * scale
            part.backward()
            loss += part.detach()
        return loss

    def _agree(self, loss: Tensor, gradients: list[Tensor], step: int) -> Agreement:
        """The one exchange and the one host synchronisation of a step.

        Everything is summed: a flag is set if any rank sets it, and a non-finite value anywhere makes the sum so.
        """
        squared_norm = torch.stack(torch._foreach_norm(gradients)).double().square().sum()
        flags = [self.stop_requested(), self._is_save_due(step), self.saver.busy]
        values = torch.cat(
            [
                torch.stack([loss.double(), squared_norm / self.num_replicas, (~torch.isfinite(loss)).double()]),
                torch.tensor(flags, dtype=torch.float64, device=loss.device),
            ]
        )
        dist.all_reduce(values)
        total_loss, total_squared_norm, num_bad_ranks, stop, due, busy = values.tolist()
        grad_norm = math.sqrt(total_squared_norm) if total_squared_norm >= 0 else math.nan
        return Agreement(total_loss, grad_norm, int(num_bad_ranks), stop > 0, due > 0, busy > 0)

    def _is_save_due(self, step: int) -> bool:
        """Rank 0 alone says when a periodic checkpoint is due."""
        if not self.world.is_first:
            return False
        if self.job.checkpoint.interval_steps is not None:
            return step % self.job.checkpoint.interval_steps == 0
        return time.monotonic() - self._last_save_s >= self.job.checkpoint.interval_s

    def _save_if_needed(self, agreed: Agreement, is_last: bool, times: StepTimes) -> None:
        if not (is_last or agreed.save_due):
            return
        self._last_save_s = time.monotonic()
        if agreed.save_busy and not is_last:
            self.recorder.event("checkpoint_skipped", step=self.progress.step, reason="a save is still running")
            return
        begin = time.perf_counter()
        if is_last:
            self.saver.wait(self.job.checkpoint.save_timeout_s, self._beat_saving)
        metrics = {
            "loss": agreed.loss,
            "grad_norm": agreed.grad_norm,
            "learning_rate": self._learning_rate(self.progress.step),
        }
        self.saver.start(self.model, self.optimizer, self.progress, metrics)
        times.checkpoint_stall_s = time.perf_counter() - begin

    def _record(self, batch: StepBatch, agreed: Agreement, times: StepTimes) -> None:
        now = time.perf_counter()
        step_s, self._step_end_s = now - self._step_end_s, now
        progress = self.progress
        self.recorder.ledger(
            step=progress.step, position=progress.position, rows=batch.step_rows, head=progress.ledger_head
        )
        self.recorder.metrics(
            {
                "step": progress.step,
                "attempt": self.attempt,
                "loss": agreed.loss,
                "grad_norm": agreed.grad_norm,
                "learning_rate": self._learning_rate(progress.step),
                "tokens": progress.tokens,
                "step_tokens": batch.effective_tokens,
                "tokens_per_s": round(batch.effective_tokens / step_s, 3),
                "step_s": round(step_s, 6),
                **times.rounded(),
                "mfu": None,
                "memory_gib": round(peak_memory_gib(), 4),
                "position": progress.position,
                "time_s": time.time(),
            }
        )

    def _learning_rate(self, step: int) -> float:
        return learning_rate(step, total_steps=self.length.total_steps, config=self.job.training)

    def _beat_saving(self) -> None:
        self.pulse.beat(self.progress.step, "saving")


def _next(batches: Iterator[StepBatch], step: int) -> StepBatch:
    try:
        return next(batches)
    except (ValueError, StayerError, StopIteration) as err:  # an OSError is the storage's and may pass
        raise DataError(f"cannot read the rows of step {step}: {type(err).__name__}: {err}") from err


def _to_device(inputs: ModelInputs, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Views of the arrays on CPU, copies elsewhere; each of shape (rows, sequence length)."""
    arrays = (inputs.input_ids, inputs.position_ids, inputs.labels)
    input_ids_BT, position_ids_BT, labels_BT = (torch.from_numpy(a).to(device, non_blocking=True) for a in arrays)
    return input_ids_BT, position_ids_BT, labels_BT


def _clip_(gradients: list[Tensor], grad_norm: float, max_norm: float) -> None:
    """Scale gradients in place so that their global norm is at most `max_norm`, as clip_grad_norm_ of torch does."""
    scale = max_norm / (grad_norm + 1e-6)
    if scale < 1.0:
        torch._foreach_mul_(gradients, scale)


def _diverged(agreed: Agreement, step: int, loss: Tensor, world: World) -> DivergedError:
    own_is_bad = not math.isfinite(loss.item())
    where = f"{agreed.num_bad_ranks} of {world.size} ranks" if agreed.num_bad_ranks else "no single rank"
    return DivergedError(
        f"step {step}: loss {agreed.loss:g}, gradient norm {agreed.grad_norm:g}; the loss of {where} is not finite. "
        f"The weights of step {step - 1} are untouched",
        hint="lower training.learning_rate, or look at the data of this step",
        is_cause=own_is_bad if agreed.num_bad_ranks else world.is_first,
    )
