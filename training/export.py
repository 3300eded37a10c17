"""A checkpoint as a Hugging Face folder: `python -m training.export RUN_DIR STEP TARGET`."""

import os
import shutil
import sys
from pathlib import Path

from infra import storage
from infra.errors import InputError, StayerError
from packing.manifest import load_manifest
from training.checkpoint import load_model_weights
from training.config import TrainingJob
from training.model import PackedCausalLM, build_model
from training.rundir import RunDir

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def export_checkpoint(run: RunDir, checkpoint_dir: Path, target: Path) -> Path:
    """Write the model of a checkpoint, with its tokenizer, as a folder that transformers loads with equal weights.

    Needs one process and the memory of the model. The folder appears complete or not at all.

    Raises:
        InputError: `target` exists.
        DamagedCheckpointError: the checkpoint is not what its manifest says.
    """
    if target.exists():
        raise InputError(f"{target} exists", hint="name another folder, or remove this one")
    model = build_run_model(run)
    load_model_weights(checkpoint_dir, model)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        model.lm.save_pretrained(temporary)
        _copy_tokenizer(Path(run.inputs().tokenizer), temporary)
        for file in temporary.iterdir():
            _fsync(file)
        storage.fsync_folder(temporary)
        temporary.rename(target)
        storage.fsync_folder(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def build_run_model(run: RunDir) -> PackedCausalLM:
    """The model of a run as it was before its first step, unsharded, float32, on the CPU."""
    job, inputs = TrainingJob.model_validate(run.job()), run.inputs()
    data = load_manifest(inputs.dataset)
    model = build_model(
        folder=inputs.model,
        architecture=job.model.architecture,
        seed=job.training.seed,
        vocab_size=data.vocab_size,
        seq_len=data.seq_len,
    )
    if inputs.model is None:
        # Generation stops at the token every document ended with; a config alone does not know it.
        model.lm.config.eos_token_id = data.eos_id
        model.lm.generation_config.eos_token_id = data.eos_id
    return model


def _copy_tokenizer(source: Path, target: Path) -> None:
    found = [source / name for name in _TOKENIZER_FILES if (source / name).is_file()]
    if not found:
        raise InputError(f"{source} holds no tokenizer", hint="the run's inputs.json names a folder that is gone")
    for file in found:
        shutil.copyfile(file, target / file.name)


def _fsync(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def main() -> int:
    """Command line: RUN_DIR STEP TARGET. Exit codes: 0 done, 1 failed, 2 the request was wrong."""
    if len(sys.argv) != 4 or not sys.argv[2].isdigit():
        sys.stderr.write("usage: python -m training.export RUN_DIR STEP TARGET\n")
        return 2
    run = RunDir(Path(sys.argv[1]).resolve())
    try:
        export_checkpoint(run, run.checkpoint(int(sys.argv[2])), Path(sys.argv[3]).resolve())
    except StayerError as err:
        sys.stderr.write(f"{err.message}\n" + (f"hint: {err.hint}\n" if err.hint else ""))
        return 2 if isinstance(err, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
