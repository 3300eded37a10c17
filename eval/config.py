"""The section ``evaluation`` of a job file."""

from typing import Literal

from pydantic import BaseModel

from infra.quantities import PositiveCount


class EvaluationConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """How each published checkpoint is scored on the held-out documents of every source."""

    every_checkpoint: bool = True
    """Score every published checkpoint; otherwise only the starting model and the final one."""
    batch_rows: PositiveCount = 4
    """Packed rows per forward pass."""
    max_rows: PositiveCount | None = None
    """Held-out rows scored per source, the first ones; by default all."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Format of the forward pass; token losses are summed in float64."""
