"""The learning rate as a pure function of the step: nothing to save, nothing to advance twice after a resume."""

import math

from training.config import TrainingConfig


def learning_rate(step: int, *, total_steps: int, config: TrainingConfig) -> float:
    """Learning rate used by optimizer step `step`.

    Args:
        step: counted from 1; the last one is `total_steps`.
        total_steps: length of the run.
        config: peak, shape, warm-up and floor.

    Returns:
        A linear ramp that reaches the peak at step `warmup_steps`, then the configured shape, which reaches
        `min_learning_rate_ratio` x peak exactly at the last step.

    Sources: cosine from Loshchilov & Hutter 2017 (arXiv:1608.03983) without restarts; warmup-stable-decay from
    Hu et al. 2024 (arXiv:2404.06395) with the 1 - sqrt decay of Hägele et al. 2024 (arXiv:2405.18392).
    """
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    floor = config.min_learning_rate_ratio
    return config.learning_rate * (floor + (1.0 - floor) * _shape(step, total_steps, config))


def _shape(step: int, total_steps: int, config: TrainingConfig) -> float:
    """Height above the floor, from 1 after the warm-up to 0 at the last step (always 1 if constant)."""
    if config.schedule == "constant":
        return 1.0
    start = config.warmup_steps
    if config.schedule == "wsd":
        start = max(start, total_steps - max(1, round(config.decay_fraction * total_steps)))
    progress = min(1.0, max(0.0, (step - start) / max(1, total_steps - start)))
    if config.schedule == "linear":
        return 1.0 - progress
    if config.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0 - math.sqrt(progress)
