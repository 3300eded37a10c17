"""The saver in this process, alone in its world, where single calls can be made to fail."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from training_runs import ARCHITECTURE, Data

from training import checkpoint, lease
from training.checkpoint import CheckpointSaver, Progress, SaveFailedError, load_checkpoint, load_model_weights
from training.checkpoint_manifest import DamagedCheckpointError, list_checkpoints
from training.config import CheckpointConfig, TrainingConfig
from training.lease import LeaseLostError
from training.model import build_model
from training.optimizer import build_optimizer
from training.rundir import Inputs, RunDir

INPUTS = Inputs(dataset="d", dataset_id="data-1", tokenizer="t", job_hash="job-1")
METRICS = {"loss": 1.0, "grad_norm": 1.0, "learning_rate": 0.1}


@pytest.fixture(scope="module")
def group() -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.new_group(backend="gloo")
    dist.destroy_process_group()


class Trained:
    """A model after one step, and its saver."""

    def __init__(self, run: RunDir, group: dist.ProcessGroup, **config: int) -> None:
        lease.take(run, owner="me", token=1)
        self.run = run
        self.model = build_model(folder=None, architecture=ARCHITECTURE, seed=0, vocab_size=512, seq_len=32)
        self.optimizer = build_optimizer(self.model, TrainingConfig(learning_rate=0.1))
        self.saver = CheckpointSaver(run, INPUTS, CheckpointConfig(**config), token=1, group=group)
        ids = torch.arange(32)[None]
        self.model(ids, ids, ids.roll(-1)).backward()
        self.optimizer.step()

    def save(self, step: int) -> None:
        self.saver.start(self.model, self.optimizer, Progress(step=step, position=8 * step), METRICS)

    def steps(self) -> list[int]:
        return [manifest.step for manifest in list_checkpoints(self.run)]


@pytest.fixture
def trained(run_dir: RunDir, group: dist.ProcessGroup) -> Trained:
    return Trained(run_dir, group, keep_last=1)


def break_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.FileSystemWriter, "write_data", full)


def test_weights_moments_and_step_come_back_bit_for_bit(trained, group):
    trained.save(1)
    trained.saver.wait_for_commit(60)
    other = build_model(folder=None, architecture=ARCHITECTURE, seed=9, vocab_size=512, seq_len=32)
    optimizer = build_optimizer(other, TrainingConfig())
    manifest = list_checkpoints(trained.run)[0]
    progress = load_checkpoint(trained.run.checkpoint(1), manifest, other, optimizer, group=group)
    assert progress == Progress(step=1, position=8)
    for ours, theirs in zip(trained.model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(trained.optimizer.state[ours][key], optimizer.state[theirs][key])


def test_a_failed_save_is_an_event_and_the_checkpoint_before_it_stays(trained, monkeypatch):
    trained.save(1)
    trained.saver.wait_for_commit(60)
    with monkeypatch.context() as patch:
        break_disk(patch)
        trained.save(2)
        trained.saver.wait(60)
    assert "No space left" in trained.run.events("checkpoint_failed")[0]["reason"]
    assert trained.steps() == [1]
    assert [f.name for f in trained.run.checkpoints.iterdir()] == ["step-00000001"]
    trained.save(3)
    trained.saver.wait_for_commit(60)
    assert trained.steps() == [3]


def test_a_checkpoint_that_had_to_exist_and_failed_is_an_error(trained, monkeypatch):
    break_disk(monkeypatch)
    trained.save(1)
    with pytest.raises(SaveFailedError, match="step 1 failed"):
        trained.saver.wait_for_commit(60)


def test_a_save_that_takes_too_long_is_reported_and_leaves_nothing_that_looks_complete(trained, monkeypatch):
    import threading

    release = threading.Event()
    write = CheckpointSaver._write
    monkeypatch.setattr(CheckpointSaver, "_write", lambda *args: (release.wait(60), write(*args))[1])
    trained.save(1)
    with pytest.raises(SaveFailedError, match="not written within"):
        trained.saver.wait(0.05)
    assert trained.steps() == []
    release.set()
    trained.saver.wait_for_commit(60)


def test_a_replaced_attempt_learns_it_from_its_next_save(trained):
    lease.take(trained.run, owner="another", token=2)
    trained.save(1)
    trained.saver.wait(60)
    with pytest.raises(LeaseLostError):
        trained.saver.raise_if_fenced()
    assert trained.steps() == []


def test_a_state_that_is_not_finite_is_saved_for_study_as_unhealthy(trained):
    with torch.no_grad():
        next(trained.model.parameters()).view(-1)[3] = float("inf")
    trained.save(1)
    trained.saver.wait_for_commit(60)
    assert [m.healthy for m in list_checkpoints(trained.run)] == [False]


def test_nothing_is_read_from_a_checkpoint_that_is_not_what_its_manifest_says(trained, data: Data):
    trained.save(1)
    trained.saver.wait_for_commit(60)
    folder: Path = trained.run.checkpoint(1)
    (folder / ".metadata").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")  # a pickle that would run a command
    with pytest.raises(DamagedCheckpointError, match=r"\.metadata"):
        load_model_weights(folder, trained.model)
