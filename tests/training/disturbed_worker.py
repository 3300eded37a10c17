"""The worker with one fault built in: `DISTURB=<what>@<step>`. Stands in for the world, so production has no switch."""

import os
import signal
import sys
import threading

import torch

from training import checkpoint, lease, loop, worker

what, _, at = os.environ["DISTURB"].partition("@")
rank, fault_step = int(os.environ["RANK"]), int(at)
real_step = loop.Trainer._step
real_train = loop.Trainer.train
real_forward_backward = loop.Trainer._forward_backward
real_write = checkpoint.CheckpointSaver._write
may_write = threading.Event()
WEIGHTS: list[torch.Tensor] = []
"""This rank's part of the weights before the step with the fault."""


def step(self, batch, times):
    if self.progress.step + 1 == fault_step:
        before_step(self)
    return real_step(self, batch, times)


def before_step(trainer):
    if what == "slow-save":  # the save that began long before may reach the disk only now
        may_write.set()
    elif what != "raise":
        trainer.saver.wait(60)  # so that it is known which checkpoint is the newest
    WEIGHTS.extend(p.detach().to_local().clone() for p in trainer.model.parameters())
    if what == "newer-attempt" and rank == 0:
        lease.take(trainer.saver._run, owner="somebody else", token=99)
    if rank != 1:
        return
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "kill-agent":
        os.kill(os.getppid(), signal.SIGKILL)
        threading.Event().wait()
    if what == "stop-one-rank":
        os.kill(os.getpid(), signal.SIGTERM)
    if what == "stop-agent":
        os.kill(os.getppid(), signal.SIGTERM)
        while not trainer.stop_requested():
            pass
    if what == "raise":
        raise ValueError("a bug on rank 1")


def train(self):
    try:
        return real_train(self)
    except loop.DivergedError:
        now = (p.detach().to_local() for p in self.model.parameters())
        assert all(torch.equal(before, p) for before, p in zip(WEIGHTS, now, strict=True)), "weights changed"
        raise


def forward_backward(self, batch):
    loss = real_forward_backward(self, batch)
    if self.progress.step + 1 == fault_step and rank == 1:
        if what == "nan-loss":
            return loss * float("nan")
        if what == "inf-gradient":
            next(self.model.parameters()).grad.to_local().view(-1)[0] = float("inf")
    return loss


def write(self, folder, state):
    if what == "slow-save":
        may_write.wait()
    if what == "raise":  # the failure comes while the save is under way, not after it
        exit_file = self._run.attempt(self._token) / "exit.json"
        while not exit_file.exists():
            pass
    return real_write(self, folder, state)


loop.Trainer._step = step
loop.Trainer.train = train
loop.Trainer._forward_backward = forward_backward
checkpoint.CheckpointSaver._write = write
sys.exit(worker.main())
