"""What the training worker may be told: the sections ``model``, ``training`` and ``checkpoint`` of a job file."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from infra.quantities import Count, NonNegativeNumber, Number, PositiveCount, PositiveNumber


class TokenizerConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """A byte-level BPE tokenizer to be trained on the job's own data."""

    vocab_size: PositiveCount = Field(default=8192, ge=300)
    """Number of entries, the 256 bytes and the control tokens included."""


class ModelConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """Where the model comes from: exactly one of `path`, `base_job` and `architecture`."""

    path: str | None = None
    """A local Hugging Face folder, or a hub name, with weights and tokenizer."""
    base_job: str | None = None
    """Another job file, relative to this one: it runs first, and its final model is continued here."""
    architecture: dict[str, Any] | None = None
    """A Hugging Face config (`model_type: qwen3`, `hidden_size: …`) for a model with random weights."""
    tokenizer: str | TokenizerConfig | None = None
    """A Hugging Face folder or hub name, or a tokenizer to train; by default the tokenizer of the starting model."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        given = [k for k in ("path", "base_job", "architecture") if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError(
                f"exactly one of path, base_job and architecture is needed, found {' and '.join(given) or 'none'}"
            )
        if self.architecture is not None:
            if "model_type" not in self.architecture:
                raise ValueError("architecture needs model_type, such as qwen3 or llama")
            if self.tokenizer is None:
                raise ValueError("a model with random weights needs tokenizer: a folder, or vocab_size to train one")
        return self


DecayRate = Annotated[Number, Field(ge=0, lt=1)]
"""How much of the past a moving average keeps."""


class TrainingConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """How the model is trained. Changing `micro_batch_rows` or the number of processes changes only rounding."""

    total_tokens: PositiveCount | None = None
    """Length of the run in tokens, counted as rows x sequence length; `100B` is 10^11."""
    epochs: PositiveCount | None = None
    """Length of the run in passes over the dataset, instead of `total_tokens`."""
    global_batch_rows: PositiveCount = 64
    """Packed rows per optimizer step, all ranks and micro-batches together."""
    micro_batch_rows: PositiveCount = 1
    """Packed rows per forward pass of one rank."""
    learning_rate: PositiveNumber = 1e-5
    """Peak learning rate."""
    min_learning_rate_ratio: NonNegativeNumber = Field(default=0.1, le=1)
    """Learning rate at the end of the schedule as a fraction of the peak."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "cosine"
    """Shape after the warm-up; `wsd` stays at the peak and decays over the last `decay_fraction` of the steps."""
    warmup_steps: Count = 0
    """Steps of linear warm-up from zero."""
    decay_fraction: PositiveNumber = Field(default=0.1, le=1)
    """Part of all steps in which `wsd` decays."""
    weight_decay: NonNegativeNumber = 0.1
    """Decoupled weight decay of the matrices; norms, biases and embeddings have none."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.95)
    """Adam's decay rates."""
    eps: PositiveNumber = 1e-8
    """Adam's epsilon."""
    clip_grad_norm: PositiveNumber = 1.0
    """Largest norm of the global gradient."""
    seed: Count = 0
    """Seed of random weights, dropout and the order of later epochs."""
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Format of forward and backward; master weights, reductions and optimizer state are float32."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """What is recomputed in the backward pass: nothing, every second layer, every layer."""
    compile: bool = False
    """Compile each decoder layer with torch.compile."""
    shard_group: PositiveCount | None = None
    """Ranks that share one copy of the model (HSDP); by default all of them (FSDP)."""
    collective_timeout_s: PositiveNumber = 300
    """A rank that waits longer than this for its peers ends the attempt."""
    threads_per_process: PositiveCount | None = None
    """Intra-op threads of a rank on CPU; by default the cores shared out between the ranks."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.total_tokens is not None and self.epochs is not None:
            raise ValueError("total_tokens and epochs both say how long to train: give one")
        return self


class CheckpointConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """When checkpoints are taken, how many are kept and where they are published."""

    interval_s: PositiveNumber = 1800
    """Seconds between two checkpoints."""
    interval_steps: PositiveCount | None = None
    """Steps between two checkpoints, instead of `interval_s`."""
    keep_last: PositiveCount = 3
    """The newest checkpoints that are always kept."""
    keep_every_steps: PositiveCount | None = None
    """Checkpoints at multiples of this many steps are kept for good."""
    store: str | None = None
    """URL to which committed checkpoints are copied (`s3://bucket/prefix`); none: they stay in the run directory."""
    save_timeout_s: PositiveNumber = 1800
    """Longest wait for a save that is still being written when training ends."""


class TrainingJob(BaseModel, frozen=True, extra="ignore"):
    """The sections of a resolved job file (`job.yaml`) that the worker reads; the others are not its business."""

    name: str
    model: ModelConfig
    training: TrainingConfig
    checkpoint: CheckpointConfig
