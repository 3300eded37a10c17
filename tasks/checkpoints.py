"""Publishing: what training committed becomes safe, visible and evaluated."""

from pathlib import Path

from prefect import task

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
    settled = {e["step"] for kind in ("checkpoint_published", "checkpoint_damaged") for e in run.events(kind)}
    return [c for c in list_checkpoints(run) if c.step not in settled]


@task(name="publish-checkpoint", task_run_name="publish-step-{step}", retries=3, retry_delay_seconds=[5, 30, 120])
def publish(run_dir: str, step: int, store: str | None) -> bool:
    """Verify a committed checkpoint and copy it to the store, its manifest last.

    Returns:
        Whether it was published; a damaged one is reported as an event and never copied.
    """
    run = RunDir(Path(run_dir))
    folder = run.checkpoint(step)
    try:
        verify(folder, read_manifest(folder))
    except DamagedCheckpointError as err:
        if not folder.exists():
            return False  # retention was faster: a newer one has taken its place
        run.record_event("checkpoint_damaged", step=step, problem=err.message)
        return False
    url = str(folder)
    if store is not None:
        url = storage.join(store, run.run_id, folder.name)
        _copy(folder, url)
    run.record_event("checkpoint_published", step=step, url=url)
    return True


def _copy(folder: Path, url: str) -> None:
    fs, target = storage.filesystem(url)
    fs.makedirs(target, exist_ok=True)
    names = sorted(f.name for f in folder.iterdir())
    for name in [*(n for n in names if n != MANIFEST), MANIFEST]:
        remote = f"{target}/{name}"
        if name != MANIFEST and fs.exists(remote) and fs.size(remote) == (folder / name).stat().st_size:
            continue  # an earlier try brought it over
        fs.put_file(str(folder / name), remote)
