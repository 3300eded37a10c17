import shutil

import pytest

from flows.campaign import Campaign
from infra import storage
from training.checkpoint_manifest import MANIFEST, CheckpointFile, CheckpointManifest
from training.exits import ExitReason, ExitRecord
from training.rundir import AttemptRecord, RunDir


@pytest.fixture
def trained(tmp_path):
    """A campaign whose only attempt completed step 60, with checkpoints of steps 30 and 60 and no export yet."""
    run = RunDir(tmp_path / "runs" / "small-1")
    for step in (30, 60):
        run.checkpoint(step).mkdir(parents=True)
        (run.checkpoint(step) / ".metadata").write_bytes(b"data")
        digest = storage.sha256_file(str(run.checkpoint(step) / ".metadata"))
        manifest = CheckpointManifest(
            step=step,
            position=step,
            tokens=step,
            dataset_id="d",
            job_hash="j",
            world_size=1,
            token=1,
            ledger_head="",
            metrics={},
            healthy=True,
            time_s=0,
            files=(CheckpointFile(name=".metadata", size_bytes=4, sha256=digest),),
        )
        (run.checkpoint(step) / MANIFEST).write_text(manifest.model_dump_json())
    attempt = AttemptRecord(
        number=1, mark="m", host="h", pid=1, create_time_s=0, world_size=1, resumed_from_step=0, started_s=0
    )
    end = ExitRecord(reason=ExitReason.COMPLETED, step=60, rank=0, host="h", time_s=1)
    run.attempt(1).mkdir(parents=True)
    storage.write_json(str(run.attempt(1) / "attempt.json"), attempt.model_dump())
    storage.write_json(str(run.attempt(1) / "exit.json"), end.model_dump(mode="json"))
    return Campaign(job=None, run=run, tracking=None)


def test_a_run_whose_last_checkpoint_is_whole_is_trained(trained):
    assert trained.final_step() == 60


def test_an_older_checkpoint_is_never_taken_for_a_lost_last_one(trained):
    shutil.rmtree(trained.run.checkpoint(60))
    assert trained.final_step() is None
    assert trained.run.events("final_checkpoint_lost")[0]["step"] == 60


def test_a_damaged_last_checkpoint_is_a_lost_one(trained):
    (trained.run.checkpoint(60) / ".metadata").write_bytes(b"date")
    assert trained.final_step() is None


def test_once_exported_the_checkpoint_is_no_longer_needed(trained):
    trained.run.model.mkdir()
    shutil.rmtree(trained.run.checkpoint(60))
    assert trained.final_step() == 60
