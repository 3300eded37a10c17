"""The sections ``recovery`` and ``tracking`` of a job file."""

from pydantic import BaseModel, Field

from infra.quantities import Count, NonNegativeNumber, PositiveCount, PositiveNumber


class RecoveryConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """What happens after an attempt fails."""

    max_restarts: Count = 20
    """Attempts that may be started after a failure before the run gives up."""
    same_step_limit: PositiveCount = 3
    """Failures in a row at the same step that count as a crash loop: the run stops."""
    backoff_s: NonNegativeNumber = 5
    """Wait before the first restart; it doubles with each failure in a row without progress."""
    max_backoff_s: NonNegativeNumber = 300
    """Longest wait before a restart."""
    hang_factor: PositiveNumber = Field(default=10, gt=1)
    """An attempt hangs when no step ends within this many median step times ..."""
    hang_floor_s: PositiveNumber = 180
    """... and within this many seconds."""
    start_limit_s: PositiveNumber = 3600
    """An attempt that starts, loads or saves hangs when it shows nothing new for this many seconds."""
    max_resumes: Count = 5
    """Resumes that the failure automation may start for one run; `stayer resume` by hand is not counted."""


class TrackingConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Where MLflow keeps what the run reports."""

    uri: str | None = None
    """MLflow tracking server; by default the environment's MLFLOW_TRACKING_URI, else SQLite in Stayer's home folder."""
    experiment: str | None = None
    """MLflow experiment; by default the job's name."""
    registered_model: str | None = None
    """Name under which the final model is registered; by default the job's name."""
