"""How long a run is: rows and optimizer steps, from the job and the size of the dataset alone."""

from dataclasses import dataclass

from training.config import TrainingConfig


@dataclass(frozen=True)
class RunLength:
    """Length of a run; every step takes `global_batch_rows` rows, the last one what remains."""

    total_rows: int
    """Rows consumed from the first step to the last; rows of later epochs count again."""
    total_steps: int
    tokens_per_step: int
    """Row capacity of one full step in tokens, padding included."""


def plan_steps(config: TrainingConfig, *, num_rows: int, seq_len: int) -> RunLength:
    """Derive the length of a run over a dataset of `num_rows` rows of `seq_len` tokens.

    `total_tokens` counts row capacity and is rounded up to whole rows; with neither `total_tokens` nor `epochs`
    the run is one pass over the dataset.
    """
    if config.total_tokens is not None:
        total_rows = _ceil_div(config.total_tokens, seq_len)
    else:
        total_rows = (config.epochs or 1) * num_rows
    return RunLength(
        total_rows=total_rows,
        total_steps=_ceil_div(total_rows, config.global_batch_rows),
        tokens_per_step=config.global_batch_rows * seq_len,
    )


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)
