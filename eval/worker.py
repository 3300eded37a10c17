"""Scores one checkpoint of a run: ``python -m eval.worker RUN_DIR STEP`` (step 0: the starting model)."""

import sys
import time
from pathlib import Path

import torch

from eval.config import EvaluationConfig
from eval.identity import evaluation_config, identity
from eval.perplexity import Score, score
from infra import storage
from infra.errors import InputError, StayerError
from packing.dataset import PackedDataset
from packing.manifest import load_manifest
from training.checkpoint import load_model_weights
from training.export import build_run_model
from training.model import PackedCausalLM
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
    """Write `evaluations/step-<n>.json` with the scores of one checkpoint (step 0: the starting model).

    Raises:
        StayerError: the run has no such checkpoint, or it is damaged.
    """
    fingerprint, started = identity(run, step), time.time()
    perplexity, targets = _scores(run, step, evaluation_config(run))
    result = {
        "step": step,
        "fingerprint": fingerprint,
        "perplexity": perplexity,
        "targets": targets,
        "seconds": time.time() - started,
        "time_s": time.time(),
    }
    storage.write_json(str(run.evaluation(step)), result)
    run.record_event("evaluated", step=step, perplexity=perplexity)


def _scores(run: RunDir, step: int, config: EvaluationConfig) -> tuple[dict[str, float], dict[str, int]]:
    """Perplexity and number of targets by source and by role."""
    inputs = run.inputs()
    manifest = load_manifest(inputs.dataset)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = _load(run, step).to(device=device, dtype=getattr(torch, config.dtype))
    scores: dict[str, Score] = {}
    for source in manifest.sources:
        if source.name not in manifest.held_out:
            continue
        held_out = PackedDataset(inputs.dataset, split=f"held-out/{source.name}")
        result = score(model, held_out, batch_rows=config.batch_rows, max_rows=config.max_rows)
        scores[f"source/{source.name}"] = result
        scores[source.role] = scores[source.role] + result if source.role in scores else result
    return {k: s.perplexity for k, s in scores.items()}, {k: s.targets for k, s in scores.items()}


def _load(run: RunDir, step: int) -> PackedCausalLM:
    """The starting model (step 0), or the model with the weights of a verified checkpoint."""
    model = build_run_model(run)
    if step > 0:
        load_model_weights(run.checkpoint(step), model)
    return model.eval()


if __name__ == "__main__":
    sys.exit(main())
