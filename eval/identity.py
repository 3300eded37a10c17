"""Which model and which data a score belongs to. Imports no torch: finding a score must cost nothing."""

from pathlib import Path

from eval.config import EvaluationConfig
from infra import storage
from infra.errors import InputError
from packing.manifest import load_manifest
from training.checkpoint_manifest import read_manifest
from training.rundir import RunDir


def evaluation_config(run: RunDir) -> EvaluationConfig:
    """How this run's checkpoints are scored."""
    return EvaluationConfig.model_validate(run.job().get("evaluation", {}))


def identity(run: RunDir, step: int) -> str:
    """Fingerprint of everything that shapes the scores of a checkpoint (step 0: the starting model).

    Raises:
        InputError: the run starts from random weights and step is 0.
        DamagedCheckpointError: the run has no committed checkpoint of that step.
    """
    inputs = run.inputs()
    if step > 0:
        model: object = read_manifest(run.checkpoint(step)).model_dump(mode="json")
    elif inputs.model is not None:
        model = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(Path(inputs.model).iterdir())]
    else:
        raise InputError(f"run {run.run_id} starts from random weights: step 0 has no model to evaluate")
    return storage.fingerprint(
        [model, inputs.dataset_id, evaluation_config(run).model_dump(exclude={"every_checkpoint"})]
    )


def known_scores(run: RunDir, step: int) -> dict[str, float] | None:
    """The perplexities of a checkpoint if they need no more work: already written, or nothing is held out."""
    if not load_manifest(run.inputs().dataset).held_out:
        return {}
    file = run.evaluation(step)
    if not file.exists():
        return None
    result = storage.read_json(str(file))
    return dict(result["perplexity"]) if result["fingerprint"] == identity(run, step) else None
