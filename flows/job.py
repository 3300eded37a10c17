"""The job: one immutable object composed of the sections that each package owns."""

from typing import Self

from pydantic import AwareDatetime, BaseModel, Field, model_validator

from eval.config import EvaluationConfig
from infra.config import ClusterConfig
from packing.config import DataConfig, PackingConfig
from tasks.config import RecoveryConfig, TrackingConfig
from training.config import CheckpointConfig, ModelConfig, TrainingConfig


class Job(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """A continued-training job, from raw text to a registered model."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")
    """Short name in lower case; run ids, the MLflow experiment and the registered model take it."""
    model: ModelConfig
    """Where the model comes from."""
    data: DataConfig
    """The text to train on and the text to hold out."""
    packing: PackingConfig = PackingConfig()
    """How documents become rows."""
    training: TrainingConfig = TrainingConfig()
    """How the model is trained."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When state is saved and what is kept."""
    recovery: RecoveryConfig = RecoveryConfig()
    """What happens after a failure."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """How checkpoints are scored."""
    cluster: ClusterConfig = ClusterConfig()
    """Where it runs."""
    tracking: TrackingConfig = TrackingConfig()
    """Where it reports."""
    deadline: AwareDatetime | None = None
    """When the model is due, with time zone; the progress line says whether it will be met."""

    @model_validator(mode="after")
    def _something_to_train_on(self) -> Self:
        if all(source.repeat == 0 for source in self.data.sources):
            raise ValueError("every source has repeat: 0, so nothing is trained on: at least one needs repeat: 1")
        return self
