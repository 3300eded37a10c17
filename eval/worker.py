"""Scores one checkpoint of a run: ``python -m eval.worker RUN_DIR STEP`` (step 0: the starting model)."""

import os
import sys
import time
from pathlib import Path
from typing import Any

from eval.config import EvaluationConfig
from infra import storage
from infra.errors import InputError, StayerError
from packing.manifest import load_manifest
from training.checkpoint_manifest import MANIFEST_FILE, read_manifest, verify
from training.rundir import RunDir


def main() -> int:
    """Evaluate as the command line asks; a failure is one line on stderr."""
    run, step = RunDir(Path(sys.argv[1])), int(sys.argv[2])
    try:
        evaluate(run, step)
    except StayerError as err:
        print(err.message, file=sys.stderr)  # noqa: T201  (this process's way of telling its parent)
        return 2 if isinstance(err, InputError) else 1
    return 0


def evaluate(run: RunDir, step: int) -> None:
    """Write `evaluations/step-<n>.json`, unless it already holds the scores of this very model and data.

    Raises:
        InputError: the run has no such checkpoint, or it is damaged.
    """
    config = EvaluationConfig.model_validate(run.job().get("evaluation", {}))
    identity = _identity(run, step, config)
    file = run.evaluation(step)
    if file.exists() and storage.read_json(str(file))["fingerprint"] == identity:
        return
    started = time.time()
    perplexity, targets = _scores(run, step, config)
    result = {
        "step": step,
        "fingerprint": identity,
        "perplexity": perplexity,
        "targets": targets,
        "seconds": time.time() - started,
        "time_s": time.time(),
    }
    storage.write_json(str(file), result)
    run.record_event("evaluated", step=step, perplexity=perplexity)


def _identity(run: RunDir, step: int, config: EvaluationConfig) -> str:
    inputs = run.inputs()
    if step == 0:
        if inputs.model is None:
            raise InputError(f"run {run.run_id} starts from random weights: step 0 has no model to evaluate")
        model = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in Path(inputs.model).iterdir())
    else:
        folder = run.checkpoint(step)
        if not (folder / MANIFEST_FILE).is_file():
            raise InputError(f"run {run.run_id} has no committed checkpoint of step {step}")
        model = [read_manifest(folder).model_dump(mode="json")]
    scoring = config.model_dump(exclude={"every_checkpoint"})
    return storage.fingerprint([model, inputs.dataset_id, scoring])


def _scores(run: RunDir, step: int, config: EvaluationConfig) -> tuple[dict[str, float], dict[str, int]]:
    """Perplexity and number of targets by source and by role."""
    import torch

    from eval.perplexity import Score, score
    from packing.dataset import PackedDataset

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))  # training goes on beside it
    model = _load(run, step, getattr(torch, config.dtype))
    inputs = run.inputs()
    manifest = load_manifest(inputs.dataset)
    scores: dict[str, Score] = {}
    for source in manifest.sources:
        if source.name not in manifest.held_out:
            continue
        held_out = PackedDataset(inputs.dataset, split=f"held-out/{source.name}")
        result = score(model, held_out, batch_rows=config.batch_rows, max_rows=config.max_rows)
        scores[f"source/{source.name}"] = result
        scores[source.role] = scores[source.role] + result if source.role in scores else result
    return {k: s.perplexity for k, s in scores.items()}, {k: s.targets for k, s in scores.items()}


def _load(run: RunDir, step: int, dtype: Any) -> Any:
    import torch

    from training.checkpoint import load_model_weights
    from training.model import build_model

    inputs = run.inputs()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if step > 0:
        problems = verify(run.checkpoint(step))
        if problems:
            raise InputError(f"checkpoint {run.checkpoint(step).name} is damaged: {problems[0]}")
    raise NotImplementedError(inputs, device, dtype, build_model, load_model_weights)


if __name__ == "__main__":
    sys.exit(main())
