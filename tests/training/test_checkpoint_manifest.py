from collections.abc import Iterator

import pytest

from infra import storage
from infra.errors import InputError
from training import lease
from training.checkpoint_manifest import (
    MANIFEST,
    CheckpointFile,
    CheckpointManifest,
    DamagedCheckpointError,
    apply_retention,
    commit,
    find_resumable,
    list_checkpoints,
    remove_stale_temporaries,
    temporary_folder,
    verify,
)
from training.config import CheckpointConfig
from training.lease import LeaseLostError
from training.rundir import Inputs, RunDir

INPUTS = Inputs(dataset="d", dataset_id="data-1", tokenizer="t", job_hash="job-1")


def save(run: RunDir, step: int, *, token: int = 1, healthy: bool = True) -> CheckpointManifest:
    """Write and commit a checkpoint of two small files."""
    folder = temporary_folder(run, step, token)
    folder.mkdir()
    files = []
    for name in ("__0_0.distcp", ".metadata"):
        (folder / name).write_bytes(f"{name} after step {step}".encode())
        sha256 = storage.sha256_file(str(folder / name))
        files.append(CheckpointFile(name=name, size_bytes=(folder / name).stat().st_size, sha256=sha256))
    manifest = CheckpointManifest(
        step=step,
        position=step * 8,
        tokens=step * 100,
        dataset_id="data-1",
        job_hash="job-1",
        world_size=1,
        token=token,
        ledger_head="",
        metrics={"loss": 1.0},
        healthy=healthy,
        time_s=0.0,
        files=tuple(files),
    )
    commit(run, folder, manifest)
    return manifest


@pytest.fixture
def run(run_dir: RunDir) -> Iterator[RunDir]:
    lease.take(run_dir, owner="me", token=1)
    yield run_dir


def steps(run: RunDir) -> list[int]:
    return [manifest.step for manifest in list_checkpoints(run)]


def rejected(run: RunDir) -> dict[int, str]:
    return {e["step"]: e["reason"] for e in run.events("checkpoint_rejected")}


def test_only_committed_checkpoints_are_listed_newest_last(run):
    for step in (100, 20, 3):
        save(run, step)
    run.checkpoint(200).mkdir()
    temporary_folder(run, 300, 1).mkdir()
    assert steps(run) == [3, 20, 100]


def flip_bit(run: RunDir) -> None:
    file = run.checkpoint(2) / "__0_0.distcp"
    file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:])


def truncate(run: RunDir) -> None:
    file = run.checkpoint(2) / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])


def remove(run: RunDir) -> None:
    (run.checkpoint(2) / ".metadata").unlink()


def swap_with_another_step(run: RunDir) -> None:
    (run.checkpoint(2) / ".metadata").write_bytes((run.checkpoint(1) / ".metadata").read_bytes())


def garble_manifest(run: RunDir) -> None:
    (run.checkpoint(2) / MANIFEST).write_text('{"step": 2')


def remove_manifest(run: RunDir) -> None:
    (run.checkpoint(2) / MANIFEST).unlink()


def empty_newer_folder(run: RunDir) -> None:
    remove(run)
    run.checkpoint(9).mkdir()


@pytest.mark.parametrize(
    "damage",
    [flip_bit, truncate, remove, swap_with_another_step, garble_manifest, remove_manifest, empty_newer_folder],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_checkpoint_is_reported_left_alone_and_the_previous_taken(run, damage):
    first, _ = save(run, 1), save(run, 2)
    damage(run)
    assert find_resumable(run, INPUTS) == first
    assert rejected(run).keys() >= {2}
    assert run.checkpoint(2).is_dir()


def test_the_newest_sound_checkpoint_is_taken_without_a_word(run):
    save(run, 1)
    newest = save(run, 2)
    assert find_resumable(run, INPUTS) == newest
    assert rejected(run) == {}


def test_an_unhealthy_checkpoint_is_never_resumed_from(run):
    healthy = save(run, 1)
    save(run, 2, healthy=False)
    assert find_resumable(run, INPUTS) == healthy
    assert "unhealthy" in rejected(run)[2]


def test_a_run_that_never_committed_starts_from_the_beginning(run):
    run.checkpoint(5).mkdir()
    assert find_resumable(run, INPUTS) is None


def test_a_run_whose_every_checkpoint_is_damaged_does_not_silently_start_again(run):
    save(run, 2)
    flip_bit(run)
    with pytest.raises(InputError, match="1 committed"):
        find_resumable(run, INPUTS)


@pytest.mark.parametrize("other", [{"dataset_id": "data-2"}, {"job_hash": "job-2"}])
def test_a_checkpoint_of_another_job_or_dataset_is_an_input_error(run, other):
    save(run, 1)
    with pytest.raises(InputError, match=next(iter(other))):
        find_resumable(run, INPUTS.model_copy(update=other))


def test_verification_names_the_file_and_what_is_wrong(run):
    manifest = save(run, 2)
    verify(run.checkpoint(2), manifest)
    truncate(run)
    with pytest.raises(DamagedCheckpointError, match=r"__0_0\.distcp has 24 bytes instead of 25"):
        verify(run.checkpoint(2), manifest)


def test_a_replaced_attempt_cannot_commit(run):
    lease.take(run, owner="another", token=2)
    with pytest.raises(LeaseLostError):
        save(run, 1, token=1)
    assert steps(run) == []


def test_a_step_run_again_replaces_what_could_not_be_used_but_keeps_it_for_study(run):
    save(run, 1)
    save(run, 2, healthy=False)
    lease.take(run, owner="me again", token=2)
    save(run, 2, token=2)
    assert [(m.step, m.token, m.healthy) for m in list_checkpoints(run)] == [(1, 1, True), (2, 2, True)]
    assert (run.checkpoints / ".step-00000002.replaced-by-0002" / MANIFEST).is_file()


def test_retention_keeps_the_last_the_marked_and_everything_it_did_not_commit(run):
    for step in range(1, 8):
        save(run, step)
    run.checkpoint(50).mkdir()
    removed = apply_retention(run, CheckpointConfig(keep_last=2, keep_every_steps=3), newest=7)
    assert removed == [1, 2, 4, 5]
    assert steps(run) == [3, 6, 7]
    assert run.checkpoint(50).is_dir()
    assert {f.name for f in run.checkpoints.iterdir()} == {f"step-{n:08d}" for n in (3, 6, 7, 50)}


def test_retention_never_removes_the_newest_healthy_checkpoint(run):
    for step in range(1, 4):
        save(run, step, healthy=step == 1)
    apply_retention(run, CheckpointConfig(keep_last=1), newest=3)
    assert steps(run) == [1, 3]


def test_retention_does_not_count_damaged_checkpoints_from_before_a_step_back(run):
    for step in (1, 2, 9):
        save(run, step)
    apply_retention(run, CheckpointConfig(keep_last=1), newest=2)
    assert steps(run) == [2, 9]


def test_what_dead_attempts_left_half_written_is_removed_and_a_newer_ones_is_not(run):
    for token in (1, 2, 3):
        temporary_folder(run, 10, token).mkdir()
    remove_stale_temporaries(run, token=2)
    assert list(run.checkpoints.iterdir()) == [temporary_folder(run, 10, 3)]
