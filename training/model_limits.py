"""What a model's shape allows, checked before any work starts; imports no torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import InputError


@dataclass(frozen=True)
class ModelLimits:
    """The limits a dataset has to respect; None where the model's own defaults decide."""

    embedding_rows: int | None
    """Token ids below this number can be embedded."""
    max_positions: int | None
    """Longest sequence the model was made for, in tokens."""


def limits_of_architecture(architecture: dict[str, Any]) -> ModelLimits:
    """Read the limits from a Hugging Face config given as plain data."""
    text = architecture.get("text_config") or architecture
    return ModelLimits(text.get("vocab_size"), text.get("max_position_embeddings"))


def limits_of_folder(folder: str | Path) -> ModelLimits:
    """Read the limits from the config.json of a Hugging Face folder.

    Raises:
        InputError: there is none.
    """
    file = Path(folder) / "config.json"
    if not file.is_file():
        raise InputError(f"{folder} is not a model folder: it holds no config.json", hint="check model.path")
    return limits_of_architecture(json.loads(file.read_text()))


def check_fit(limits: ModelLimits, *, vocab_size: int, seq_len: int) -> None:
    """Make sure that every token id has an embedding and every position is one the model knows.

    Raises:
        InputError: the tokenizer's `vocab_size` or the dataset's `seq_len` is larger than the model allows.
    """
    if limits.embedding_rows is not None and vocab_size > limits.embedding_rows:
        raise InputError(
            f"the tokenizer has {vocab_size} entries but the model embeds only {limits.embedding_rows}",
            hint="use the model's own tokenizer, or raise vocab_size in model.architecture",
        )
    if limits.max_positions is not None and seq_len > limits.max_positions:
        raise InputError(
            f"rows are {seq_len} tokens long but the model was made for {limits.max_positions} positions",
            hint=f"set packing.seq_len to at most {limits.max_positions}, or raise max_position_embeddings",
        )
