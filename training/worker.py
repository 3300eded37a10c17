"""One process of a training run: `torchrun … -m training.worker RUN_DIR`.

The launcher gives STAYER_ATTEMPT (a mark that every process of the attempt carries) and STAYER_ATTEMPT_NUMBER (which is
also the lease token). Everything else is read from the run directory; why the attempt ended is written there.
"""

import faulthandler
import logging
import math
import os
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from infra.errors import InputError, StayerError
from packing import ledger
from packing.dataset import PackedDataset
from packing.loader import Loader
from training import checkpoint_manifest, failures, lease
from training.checkpoint import CheckpointSaver, Progress, load_checkpoint
from training.checkpoint_manifest import CheckpointManifest
from training.config import TrainingJob
from training.exits import EXIT_CODES, ExitReason
from training.length import RunLength, plan_steps
from training.loop import DataError, Trainer
from training.model import PackedCausalLM, build_model
from training.optimizer import build_optimizer
from training.parallel import World, is_small, join_world, make_mesh, num_replicas, shard_model
from training.rundir import Inputs, RunDir
from training.telemetry import Recorder
from training.watchdog import Pulse, end_with_parent

log = logging.getLogger(__name__)

# gloo closes a group for good after one timeout: a disk that stalls for hours must not end all saving. A peer that
# died is noticed at once by its closed connection, one that hangs by whoever watches the heartbeats.
_SAVE_GROUP_TIMEOUT = timedelta(days=2)


class StopRequest:
    """A stop asked for by SIGTERM or SIGINT to this process, or by the file `stop` in the run directory."""

    def __init__(self, run: RunDir) -> None:
        self._file, self._signalled = run.stop_file, threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def __call__(self) -> bool:
        """Whether somebody has asked this process to stop."""
        return self._signalled.is_set() or self._file.exists()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled.set()


@dataclass
class Attempt:
    """This process's part in one attempt at a run."""

    run: RunDir
    mark: str
    number: int
    rank: int
    pulse: Pulse
    stop_requested: StopRequest
    trainer: Trainer | None = None

    @property
    def step(self) -> int:
        """Steps done so far."""
        return self.trainer.progress.step if self.trainer else 0

    def carry_out(self) -> ExitReason:
        """Set up, train, and tell on rank 0 how it ended."""
        self.pulse.beat(0, "starting")
        job = TrainingJob.model_validate(self.run.job())
        inputs = self.run.inputs()
        world = join_world(job.training)
        recorder = Recorder(self.run, enabled=world.is_first)
        if world.is_first:
            self._take_lease()
        self.trainer = self._set_up(job, inputs, world, recorder)
        if world.is_first:
            total_steps = self.trainer.length.total_steps
            log.info("training from step %d to %d on %d ranks", self.step + 1, total_steps, world.size)
        reason = self.trainer.train()
        self.trainer.loader.close()
        if world.is_first:
            log.info("ends at step %d: %s", self.step, reason)
            if reason is ExitReason.COMPLETED:
                recorder.event("training_completed", step=self.step, attempt=self.number)
            failures.write_exit(self.run, self.number, failures.exit_record(reason, step=self.step, rank=0))
        self.pulse.beat(self.step, "finished")
        dist.barrier()  # torchrun ends all processes as soon as one has left with a code other than 0
        return reason

    def tell_failure(self, err: BaseException) -> ExitReason:
        """Write down why this process fails, then let a save that is on its way end."""
        reason, secondary = failures.classify(err)
        log.error("attempt %d ends at step %d: %s", self.number, self.step, reason, exc_info=err)
        record = failures.exit_record(reason, step=self.step, rank=self.rank, err=err)
        try:
            failures.write_exit(self.run, self.number, record, secondary=secondary)
        except OSError as write_err:
            log.error("the reason could not be written: %s", write_err)
        if self.trainer is not None:
            job = self.trainer.job
            # A save needs every rank: once one is lost or hangs, it will hardly ever end.
            timeout_s = job.training.collective_timeout_s if secondary else math.inf
            try:
                self.trainer.saver.wait(min(timeout_s, job.checkpoint.save_timeout_s))
            except StayerError as save_err:
                log.error("%s", save_err)
        return reason

    def _take_lease(self) -> None:
        current = lease.read(self.run)
        if current is None or (current.token, current.owner) != (self.number, self.mark):
            lease.take(self.run, owner=self.mark, token=self.number)
        checkpoint_manifest.remove_stale_temporaries(self.run, token=self.number)

    def _set_up(self, job: TrainingJob, inputs: Inputs, world: World, recorder: Recorder) -> Trainer:
        config = job.training
        dataset = _open_dataset(inputs)
        length = plan_steps(config, num_rows=dataset.num_rows, seq_len=dataset.seq_len)
        self.pulse.beat(0, "building the model")
        mesh = make_mesh(world, config.shard_group)
        model = build_model(
            folder=inputs.model,
            architecture=job.model.architecture,
            seed=config.seed,
            vocab_size=dataset.manifest.vocab_size,
            seq_len=dataset.seq_len,
        )
        accumulate_locally = is_small(model)
        shard_model(model, config, mesh)
        optimizer = build_optimizer(model, config)
        group = dist.new_group(backend="gloo", timeout=_SAVE_GROUP_TIMEOUT)
        saver = CheckpointSaver(self.run, inputs, job.checkpoint, token=self.number, group=group)
        progress = self._resume(inputs, model, optimizer, length, recorder, group)
        loader = Loader(
            dataset,
            global_batch_rows=config.global_batch_rows,
            micro_batch_rows=config.micro_batch_rows,
            rank=world.rank,
            world_size=world.size,
            total_rows=length.total_rows,
            seed=config.seed,
            start_position=progress.position,
        )
        return Trainer(
            job=job,
            world=world,
            length=length,
            num_replicas=num_replicas(mesh),
            accumulate_locally=accumulate_locally,
            model=model,
            optimizer=optimizer,
            loader=loader,
            saver=saver,
            recorder=recorder,
            pulse=self.pulse,
            progress=progress,
            attempt=self.number,
            stop_requested=self.stop_requested,
        )

    def _resume(
        self,
        inputs: Inputs,
        model: PackedCausalLM,
        optimizer: torch.optim.Optimizer,
        length: RunLength,
        recorder: Recorder,
        group: dist.ProcessGroup,
    ) -> Progress:
        """Load the newest usable checkpoint; rank 0 chooses for all."""
        self.pulse.beat(0, "looking for a checkpoint")
        choice: list[CheckpointManifest | None] = [None]
        if self.rank == 0:
            choice = [checkpoint_manifest.find_resumable(self.run, inputs)]
        dist.broadcast_object_list(choice, group_src=0, group=group)
        if (manifest := choice[0]) is None:
            recorder.event("training_started", attempt=self.number, total_steps=length.total_steps)
            return Progress(ledger_head=ledger.GENESIS)
        self.pulse.beat(manifest.step, "loading a checkpoint")
        progress = load_checkpoint(self.run.checkpoint(manifest.step), manifest, model, optimizer, group=group)
        recorder.event("resumed", attempt=self.number, step=progress.step, position=progress.position)
        return progress


def _open_dataset(inputs: Inputs) -> PackedDataset:
    """Open the training data and make sure it is what the run was prepared for.

    Raises:
        DataError: it is not, or it cannot be read.
    """
    try:
        dataset = PackedDataset(inputs.dataset)
    except (StayerError, OSError, ValueError) as err:
        raise DataError(f"cannot open the dataset {inputs.dataset}: {err}", hint="stayer prepare JOB") from err
    if dataset.manifest.dataset_id != inputs.dataset_id:
        raise DataError(
            f"{inputs.dataset} holds dataset {dataset.manifest.dataset_id[:12]}, the run was prepared for "
            f"{inputs.dataset_id[:12]}",
            hint="prepare the data again, or start a new run",
        )
    return dataset


def main() -> int:
    """Take part in a training run; returns the process's exit code (see training.exits)."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    end_with_parent()
    if len(sys.argv) != 2 or "STAYER_ATTEMPT_NUMBER" not in os.environ or "RANK" not in os.environ:
        raise InputError(
            "training.worker takes a run directory and is started by torchrun with STAYER_ATTEMPT and "
            "STAYER_ATTEMPT_NUMBER in the environment",
            hint="stayer run JOB",
        )
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # whoever finds the attempt hanging asks for stacks
    run, rank = RunDir(Path(sys.argv[1]).resolve()), int(os.environ["RANK"])
    number = int(os.environ["STAYER_ATTEMPT_NUMBER"])
    mark = os.environ.get("STAYER_ATTEMPT", f"attempt-{number}")
    attempt = Attempt(run, mark, number, rank, Pulse(run, rank), StopRequest(run))
    try:
        reason = attempt.carry_out()
    except Exception as err:
        reason = attempt.tell_failure(err)
        logging.shutdown()
        # Peers may be gone: tearing the process group down in order could hang or abort, and there is nothing to save.
        os._exit(EXIT_CODES[reason])
    dist.destroy_process_group()
    return EXIT_CODES[reason]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError:
        traceback.print_exc()
        sys.exit(EXIT_CODES[ExitReason.CONFIG_ERROR])
