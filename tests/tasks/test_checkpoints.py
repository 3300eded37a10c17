import hashlib

import fsspec
import pytest

from tasks.checkpoints import newest_step, publish, unpublished
from training.checkpoint_manifest import MANIFEST, CheckpointFile, CheckpointManifest


@pytest.fixture
def commit(run):
    """Commits a checkpoint of two small files."""

    def write(step, *, token=1):
        folder = run.checkpoint(step)
        folder.mkdir(parents=True, exist_ok=True)
        files = []
        for name in ("__0_0.distcp", ".metadata"):
            content = f"{name} of step {step} by {token}".encode()
            (folder / name).write_bytes(content)
            digest = hashlib.sha256(content).hexdigest()
            files.append(CheckpointFile(name=name, size_bytes=len(content), sha256=digest))
        manifest = CheckpointManifest(
            step=step,
            position=8 * step,
            tokens=64 * step,
            dataset_id="d",
            job_hash="j",
            world_size=2,
            token=token,
            ledger_head="",
            metrics={"loss": 1.0},
            healthy=True,
            time_s=0.0,
            files=tuple(files),
        )
        (folder / MANIFEST).write_text(manifest.model_dump_json())

    return write


def test_a_checkpoint_is_published_once_and_again_when_it_was_taken_anew(run, commit):
    commit(10)
    commit(20)
    assert (newest_step(run), [c.step for c in unpublished(run)]) == (20, [10, 20])
    assert publish.fn(str(run.path), 10, None)
    assert [c.step for c in unpublished(run)] == [20]
    commit(10, token=2)
    assert [(c.step, c.token) for c in unpublished(run)] == [(10, 2), (20, 1)]


def test_the_store_gets_every_file_and_the_manifest_last(run, commit):
    commit(10)
    assert publish.fn(str(run.path), 10, "memory://store")
    store = fsspec.filesystem("memory")
    found = store.ls(f"/store/{run.run_id}/step-00000010", detail=True)
    assert sorted(f["name"].rsplit("/", 1)[1] for f in found) == [".metadata", "__0_0.distcp", MANIFEST]
    assert max(found, key=lambda f: f["created"])["name"].endswith(MANIFEST)
    assert store.cat(f"/store/{run.run_id}/step-00000010/__0_0.distcp") == b"__0_0.distcp of step 10 by 1"


def test_a_damaged_checkpoint_is_told_and_never_copied(run, commit):
    commit(30)
    file = run.checkpoint(30) / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert not publish.fn(str(run.path), 30, "memory://damaged")
    assert "SHA-256" in run.events("checkpoint_damaged")[0]["problem"]
    assert not fsspec.filesystem("memory").exists("/damaged")
    assert unpublished(run) == []


def test_a_checkpoint_that_retention_removed_meanwhile_is_no_damage(run):
    assert not publish.fn(str(run.path), 40, None)
    assert run.events("checkpoint_damaged") == []
