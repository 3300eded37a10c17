from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, field_validator

from infra.quantities import Count, NonNegativeNumber, PositiveCount


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _whole(value: float) -> float:
    if value != int(value):
        raise ValueError("expected whole passes: 0 (only evaluated), 1, 2, …; parts of a pass are not supported yet")
    return value


class SourceConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """One body of text: where it lies, how to read it, how often to train on it."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]
    """Short name in reports and evaluations: small letters, digits, `-` and `_`."""
    uri: Annotated[list[str], BeforeValidator(_as_list, json_schema_input_type=str | list[str]), Field(min_length=1)]
    """Files, folders or globs (`**` crosses folders), as paths or fsspec URLs; one or a list. Hidden files that a
    folder or glob finds are left out."""
    exclude: list[str] = []
    """Patterns of files to leave out (`*` also crosses folders); matched against the whole path, the path below
    the folder or glob that found the file, and the file name."""
    format: Literal["auto", "jsonl", "text"] = "auto"
    """`jsonl`: one JSON object a line; `text`: one file is one document; `auto`: by extension (.jsonl, .json and
    .ndjson are jsonl). Either may be gzipped (.gz)."""
    text_field: Annotated[str, Field(min_length=1)] = "text"
    """JSON field that holds the text; `meta.text` looks inside an object. No other field is interpreted."""
    licence: str = "unknown"
    """Licence of the text, carried into the manifest and the model card."""
    personal_data: bool = False
    """Whether the text holds personal data, carried into the manifest."""
    repeat: Annotated[NonNegativeNumber, AfterValidator(_whole)] = 1.0
    """Passes over the source in one epoch, whole for now; 0: never trained on, only its held-out documents are
    used, for evaluation."""
    role: Literal["domain", "general"] = "domain"
    """What evaluation compares: `domain` is the text adapted to, `general` the text not to be forgotten."""

    @property
    def passes(self) -> int:
        """How often each document is trained on in one epoch."""
        return int(self.repeat)


class DataConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """The sources and the split into what is trained on and what is only evaluated."""

    sources: Annotated[list[SourceConfig], Field(min_length=1)]
    """Bodies of text, each with a name of its own."""
    held_out_fraction: Annotated[NonNegativeNumber, Lt(0.5)] = 0.01
    """Share of each source's documents kept for evaluation. A hash of seed and text decides, so a document is held
    out in every job of the same seed and fraction, with all its duplicates."""
    held_out_max_tokens: PositiveCount = 200_000
    """Evaluation tokens kept per source; held-out tokens beyond are used for nothing, and counted."""
    seed: Count = 0
    """Decides the held-out split and the order of the training data."""

    @field_validator("sources")
    @classmethod
    def _unique_names(cls, sources: list[SourceConfig]) -> list[SourceConfig]:
        names = [source.name for source in sources]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"source names must differ, these stand twice: {', '.join(twice)}")
        return sources


class PackingConfig(BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True):
    """How tokenized documents become rows of one length."""

    seq_len: Annotated[PositiveCount, Ge(8)] = 4096
    """Row capacity in tokens."""
    strategy: Literal["concat", "best_fit"] = "concat"
    """`concat`: no padding but in the last row, documents may be split; `best_fit`: documents that fit a row are
    never split, rows end with a little padding."""
    buckets: PositiveCount = 4
    """Parts the documents are dealt into by hash; each is shuffled and packed alone, in memory."""
    rows_per_shard: PositiveCount = 8192
    """Rows in one shard file."""
