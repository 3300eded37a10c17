from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

IGNORED = -100
"""Label of a position that carries no loss."""


@dataclass(frozen=True)
class Rows:
    """Packed rows as they are stored."""

    input_ids: NDArray[np.int64]
    """Shape (n, seq_len), padding at the end."""
    document_lengths: list[NDArray[np.int64]]
    """Tokens of each document in each row, n arrays; what a row has beyond their sum is padding."""


@dataclass(frozen=True)
class ModelInputs:
    """What a training step takes; all of shape (n, seq_len), int64."""

    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    """Restart at 0 with every document; padding counts as a document of its own."""
    labels: NDArray[np.int64]
    """Already shifted: the next token of the same document, or IGNORED at its last position and on padding."""


def model_inputs(rows: Rows) -> ModelInputs:
    """Positions and labels that keep the documents of a row apart."""
    num_rows, seq_len = rows.input_ids.shape
    used = np.array([lengths.sum() for lengths in rows.document_lengths], dtype=np.int64)
    with_padding = [
        np.append(lengths, room) if room else lengths
        for lengths, room in zip(rows.document_lengths, (seq_len - used).tolist(), strict=True)
    ]
    lengths = np.concatenate([np.empty(0, np.int64), *with_padding])
    ends = np.cumsum(lengths)
    positions = np.arange(num_rows * seq_len) - np.repeat(ends - lengths, lengths)
    labels = np.empty(num_rows * seq_len, dtype=np.int64)
    labels[:-1] = rows.input_ids.reshape(-1)[1:]
    labels[ends - 1] = IGNORED
    labels = labels.reshape(num_rows, seq_len)
    labels[np.arange(seq_len) >= used[:, None]] = IGNORED
    return ModelInputs(rows.input_ids, positions.reshape(num_rows, seq_len), labels)


def with_fillers(inputs: ModelInputs, num_rows: int, *, pad_id: int) -> ModelInputs:
    """Add rows of padding alone, which carry no loss, until there are `num_rows`."""
    missing, seq_len = num_rows - inputs.input_ids.shape[0], inputs.input_ids.shape[1]
    if not missing:
        return inputs

    def extend(values: NDArray[np.int64], filler: Any) -> NDArray[np.int64]:
        return np.concatenate([values, np.broadcast_to(np.int64(filler), (missing, seq_len))])

    return ModelInputs(
        input_ids=extend(inputs.input_ids, pad_id),
        position_ids=extend(inputs.position_ids, np.arange(seq_len)),
        labels=extend(inputs.labels, IGNORED),
    )
