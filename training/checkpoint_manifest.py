"""Which checkpoints exist, whether they are whole, and which one a run continues from. Imports no torch.

A checkpoint is a folder `checkpoints/step-<8 digits>` with a `manifest.json`, which is written last: without it the
folder is no checkpoint, whatever else it holds. While being written it lies under `.step-<8 digits>-<token>.tmp`.
"""

import errno
import re
import shutil
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel, ValidationError

from infra import storage
from infra.errors import InputError, StayerError
from training import lease
from training.config import CheckpointConfig
from training.rundir import Inputs, RunDir

MANIFEST = "manifest.json"
_METADATA = ".metadata"
FORMAT_VERSION = 1
_FOLDER = re.compile(r"step-(\d{8,})")
_TEMPORARY = re.compile(r"\.step-(\d{8,})-(\d{4,})\.tmp")
_HASHING_THREADS = 4


class CheckpointFile(BaseModel, frozen=True):
    """One file of a checkpoint."""

    name: str
    size_bytes: int
    sha256: str


class CheckpointManifest(BaseModel, frozen=True):
    """`manifest.json`: the commit record of a checkpoint."""

    format_version: int = FORMAT_VERSION
    step: int
    """Optimizer steps done; the state is exactly the one after this step."""
    position: int
    """Sequences consumed."""
    tokens: int
    """Effective tokens consumed."""
    dataset_id: str
    job_hash: str
    world_size: int
    """Ranks that wrote it; any other number can read it."""
    token: int
    """Lease token: the number of the attempt that wrote it."""
    ledger_head: str
    """Hash over the sequence ids of all steps so far."""
    metrics: dict[str, float]
    """loss, grad_norm and learning_rate of the step."""
    healthy: bool
    """False if the loss, the gradient norm or any value of the state is not finite: never resumed from."""
    time_s: float
    """When it was committed, wall clock."""
    files: tuple[CheckpointFile, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all files."""
        return sum(file.size_bytes for file in self.files)


class DamagedCheckpointError(StayerError):
    """A committed checkpoint is not what its manifest says."""


def temporary_folder(run: RunDir, step: int, token: int) -> Path:
    """Where the checkpoint after `step` is written by the attempt `token` until it is committed."""
    return run.checkpoints / f".step-{step:08d}-{token:04d}.tmp"


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read the commit record of a checkpoint folder.

    Raises:
        DamagedCheckpointError: it is missing, unreadable, or of a format this version does not know.
    """
    try:
        manifest = CheckpointManifest.model_validate(storage.read_json(str(folder / MANIFEST)))
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{folder} holds no {MANIFEST}: it was never committed") from None
    except (ValueError, ValidationError) as err:
        raise DamagedCheckpointError(f"{folder / MANIFEST} cannot be read: {err}") from err
    if manifest.format_version != FORMAT_VERSION:
        raise DamagedCheckpointError(
            f"{folder} has format version {manifest.format_version}, this Stayer reads {FORMAT_VERSION}"
        )
    return manifest


def list_checkpoints(run: RunDir) -> list[CheckpointManifest]:
    """The committed checkpoints with a readable manifest, newest last. Their files are not verified."""
    found = []
    for _, folder in _folders(run):
        try:
            found.append(read_manifest(folder))
        except DamagedCheckpointError:
            continue
    return found


def verify(folder: Path, manifest: CheckpointManifest) -> None:
    """Make sure that every file is the one that was committed: present, of its size, with its SHA-256.

    Raises:
        DamagedCheckpointError: naming the first file that is not.
    """
    names = {file.name for file in manifest.files}
    # Everything that is read later, pickled metadata first of all, has to be on the list, and nothing elsewhere.
    if _METADATA not in names or any(name != Path(name).name for name in names):
        raise DamagedCheckpointError(
            f"{folder / MANIFEST} does not list the files of a checkpoint: {sorted(names)[:4]}"
        )
    for file in manifest.files:
        path = folder / file.name
        if not path.is_file():
            raise DamagedCheckpointError(f"{path} is missing")
        if (size := path.stat().st_size) != file.size_bytes:
            raise DamagedCheckpointError(f"{path} has {size} bytes instead of {file.size_bytes}")
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        hashes = pool.map(lambda file: _hash(folder / file.name), manifest.files)
        for file, found in zip(manifest.files, hashes, strict=True):
            if found != file.sha256:
                raise DamagedCheckpointError(
                    f"{folder / file.name} has SHA-256 {found[:12]}… instead of {file.sha256[:12]}…"
                )


def _hash(path: Path) -> str:
    """Raises DamagedCheckpointError where the disk cannot read any more: that is damage, not an outage."""
    try:
        return storage.sha256_file(str(path))
    except OSError as err:
        if err.errno != errno.EIO:
            raise
        raise DamagedCheckpointError(f"{path} cannot be read: {err}") from err


def find_resumable(run: RunDir, inputs: Inputs) -> CheckpointManifest | None:
    """The newest checkpoint that is healthy and whole, or None if none was ever committed.

    Others on the way are left as they are; for each an event `checkpoint_rejected` says why.

    Raises:
        InputError: a checkpoint belongs to another dataset or job, or there are checkpoints but none can be used
            (a fresh start would silently throw the run's progress away).
    """
    rejected = 0
    for step, folder in reversed(_folders(run)):
        if not (folder / MANIFEST).exists():
            run.record_event("checkpoint_rejected", step=step, token=0, reason="it was never committed")
            continue
        token = 0
        try:
            manifest = read_manifest(folder)
            token = manifest.token
            if not manifest.healthy:
                raise DamagedCheckpointError("it is marked unhealthy")
            _check_compatible(manifest, inputs)
            verify(folder, manifest)
        except DamagedCheckpointError as err:
            run.record_event("checkpoint_rejected", step=step, token=token, reason=err.message)
            rejected += 1
            continue
        return manifest
    if rejected:
        raise InputError(
            f"run {run.run_id} has {rejected} committed checkpoints but none can be used",
            hint=f"events.jsonl says why; move {run.checkpoints} away to start from the beginning",
        )
    return None


def commit(run: RunDir, temporary: Path, manifest: CheckpointManifest) -> None:
    """Make a fully written and synced folder a checkpoint: manifest last, then its final name.

    Raises:
        LeaseLostError: a newer attempt owns the run.
        OSError: the disk refused.
    """
    lease.check(run, token=manifest.token)
    storage.write_json(str(temporary / MANIFEST), manifest.model_dump())
    final = run.checkpoint(manifest.step)
    lease.check(run, token=manifest.token)
    if final.exists():
        # The run went back before this step, because what lies here could not be used. It is kept for study.
        final.rename(final.with_name(f".{final.name}.replaced-by-{manifest.token:04d}"))
    temporary.rename(final)
    storage.fsync_folder(final.parent)


def remove_stale_temporaries(run: RunDir, *, token: int) -> None:
    """Remove what this attempt's predecessors were writing when they died."""
    for folder in run.checkpoints.glob(".step-*.tmp"):
        match = _TEMPORARY.fullmatch(folder.name)
        if match and int(match[2]) <= token:
            shutil.rmtree(folder, ignore_errors=True)


def superseded(
    manifests: Sequence[CheckpointManifest],
    config: CheckpointConfig,
    *,
    newest: int,
    rejected: Collection[int] = (),
) -> list[int]:
    """The steps of checkpoints that retention removes once the one after step `newest` is committed.

    Kept are the last `keep_last` up to `newest`, the newest healthy one, and every `keep_every_steps`. Checkpoints
    after `newest` stem from before a step back, those in `rejected` were found unusable: neither are counted, nor
    touched.
    """
    past = [m for m in manifests if m.step <= newest and m.step not in rejected]
    kept = {m.step for m in past[-config.keep_last :]} | {m.step for m in [m for m in past if m.healthy][-1:]}
    every = config.keep_every_steps
    return [m.step for m in past if m.step not in kept and not (every and m.step % every == 0)]


def apply_retention(run: RunDir, config: CheckpointConfig, *, newest: int) -> list[int]:
    """Remove superseded checkpoints, each one's manifest first, and return their steps."""
    manifests = list_checkpoints(run)
    found_bad = {(event["step"], event.get("token")) for event in run.events("checkpoint_rejected")}
    rejected = {m.step for m in manifests if (m.step, m.token) in found_bad}
    steps = superseded(manifests, config, newest=newest, rejected=rejected)
    for manifest in (m for m in manifests if m.step in steps):
        folder = run.checkpoint(manifest.step)
        (folder / MANIFEST).unlink()
        storage.fsync_folder(folder)
        # Under a temporary name the next attempt removes what a crash in the middle leaves behind.
        trash = temporary_folder(run, manifest.step, manifest.token)
        shutil.rmtree(trash, ignore_errors=True)  # of an earlier removal that was cut short
        shutil.rmtree(folder.rename(trash))
    return steps


def _folders(run: RunDir) -> list[tuple[int, Path]]:
    """Folders under a final name with their steps, oldest first, committed or not."""
    if not run.checkpoints.is_dir():
        return []
    matches = [(m, f) for f in run.checkpoints.iterdir() if (m := _FOLDER.fullmatch(f.name)) and f.is_dir()]
    return sorted((int(m[1]), f) for m, f in matches)


def _check_compatible(manifest: CheckpointManifest, inputs: Inputs) -> None:
    for key, ours in (("dataset_id", inputs.dataset_id), ("job_hash", inputs.job_hash)):
        theirs = getattr(manifest, key)
        if theirs != ours:
            raise InputError(
                f"the checkpoint after step {manifest.step} belongs to {key} {theirs[:12]}, the run has {ours[:12]}",
                hint="continue with the job and data the run began with, or start a new run",
            )
