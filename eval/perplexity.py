"""Perplexity of a causal language model on packed held-out documents."""

import math

import numpy as np
import torch
from pydantic import BaseModel
from torch import nn

from packing.dataset import PackedDataset
from packing.rows import model_inputs


class Score(BaseModel, frozen=True):
    """Summed token losses of one held-out set."""

    nats: float
    """Sum of the negative log-likelihoods of all targets."""
    targets: int
    """Predicted tokens: all but the first of each document."""

    @property
    def perplexity(self) -> float:
        """exp of the mean loss; infinite when it overflows."""
        mean = self.nats / self.targets if self.targets else math.nan
        return math.exp(mean) if not mean > 700 else math.inf  # NaN stays NaN: bad weights must show

    def __add__(self, other: "Score") -> "Score":
        return Score(nats=self.nats + other.nats, targets=self.targets + other.targets)


def score(model: nn.Module, dataset: PackedDataset, *, batch_rows: int, max_rows: int | None = None) -> Score:
    """Score a model on a dataset's first `max_rows` rows, each document seeing only itself.

    Args:
        model: a `PackedCausalLM`; its forward returns the summed loss of the labelled positions.
    """
    device = next(model.parameters()).device
    rows = min(dataset.num_rows, max_rows or dataset.num_rows)
    nats, targets = 0.0, 0
    for start in range(0, rows, batch_rows):
        indices = np.arange(start, min(start + batch_rows, rows), dtype=np.int64)
        batch = model_inputs(dataset.rows(indices))
        with torch.no_grad():
            loss = model(
                torch.from_numpy(batch.input_ids).to(device),
                torch.from_numpy(batch.position_ids).to(device),
                torch.from_numpy(batch.labels).to(device),
            )
        nats += float(loss)
        targets += dataset.num_targets(indices)
    return Score(nats=nats, targets=targets)
