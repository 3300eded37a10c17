"""Publishing: what training committed becomes safe, visible and evaluated."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra import storage
from training.checkpoint_manifest import (
    MANIFEST,
    CheckpointManifest,
    DamagedCheckpointError,
    list_checkpoints,
    read_manifest,
    verify,
)
from training.rundir import RunDir


def newest_step(run: RunDir) -> int:
    """Step of the newest committed checkpoint; 0 without one. Cheap enough to ask several times a second."""
    steps = [int(file.parent.name.removeprefix("step-")) for file in run.checkpoints.glob(f"step-*/{MANIFEST}")]
    return max(steps, default=0)


def unpublished(run: RunDir) -> list[CheckpointManifest]:
    """Committed checkpoints that were neither published nor found damaged, oldest first."""
    kinds = ("checkpoint_published", "checkpoint_damaged")
    settled = {(e["step"], e.get("token")) for kind in kinds for e in run.events(kind)}
    # After a rollback a step is committed anew, by a later attempt: that is another checkpoint.
    return [c for c in list_checkpoints(run) if (c.step, c.token) not in settled]


@task(
    name="publish-checkpoint",
    task_run_name="publish-step-{step}",
    retries=2,
    retry_delay_seconds=5,
    cache_policy=NO_CACHE,
)
def publish(run_dir: str, step: int, store: str | None) -> bool:
    """Verify a committed checkpoint and copy it to the store, its manifest last.

    Returns:
        Whether it was published; a damaged one is reported as an event and never copied.
    """
    run = RunDir(Path(run_dir))
    folder = run.checkpoint(step)
    try:
        manifest = read_manifest(folder)
    except DamagedCheckpointError:
        return False  # retention was faster: a newer one has taken its place
    try:
        verify(folder, manifest)
    except DamagedCheckpointError as err:
        if (folder / MANIFEST).exists():
            run.record_event("checkpoint_damaged", step=step, token=manifest.token, problem=err.message)
        return False
    url = str(folder)
    if store is not None:
        url = storage.join(store, run.run_id, folder.name)
        _copy(folder, url)
    run.record_event("checkpoint_published", step=step, token=manifest.token, url=url)
    return True


def _copy(folder: Path, url: str) -> None:
    fs, target = storage.filesystem(url)
    fs.makedirs(target, exist_ok=True)
    names = sorted(f.name for f in folder.iterdir())
    for name in [*(n for n in names if n != MANIFEST), MANIFEST]:
        fs.put_file(str(folder / name), f"{target}/{name}")
