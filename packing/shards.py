"""The two kinds of Arrow files: shards of packed rows, and token files of documents on their way to a row."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel

from infra import storage
from infra.errors import StayerError
from packing.pack import RowPlan, fill_rows


class WrittenFile(BaseModel, frozen=True):
    """A finished file, and how to recognise it."""

    file: str
    """Path below the folder that lists it."""
    size_bytes: int
    sha256: str

    def problem(self, folder: Path, *, check_content: bool) -> str | None:
        """What is wrong with the file, or None: missing, another size, or (if asked) other content."""
        path = folder / self.file
        if not path.is_file():
            return f"{self.file} is missing"
        if (size := path.stat().st_size) != self.size_bytes:
            return f"{self.file} has {size} bytes, not the {self.size_bytes} it was written with"
        if check_content and storage.sha256_file(str(path)) != self.sha256:
            return f"{self.file} does not hold what was written (its SHA-256 differs)"
        return None


class ShardFile(WrittenFile, frozen=True):
    """One file of packed rows."""

    rows: int
    effective_tokens: int
    """Tokens that are no padding."""
    documents: int
    """Documents and parts of documents, counted per row."""


@dataclass(frozen=True)
class ShardFormat:
    """What all shards of a dataset have in common."""

    dataset_id: str
    tokenizer_sha256: str
    seq_len: int
    pad_id: int
    token_dtype: str
    """`uint16` or `uint32`."""

    def schema(self) -> pa.Schema:
        """Columns and metadata of a shard."""
        return pa.schema(
            [
                pa.field("input_ids", pa.list_(_arrow_type(self.token_dtype), self.seq_len), nullable=False),
                pa.field("document_lengths", pa.list_(pa.int32()), nullable=False),
                pa.field("effective_tokens", pa.int32(), nullable=False),
            ],
            metadata={
                "dataset_id": self.dataset_id,
                "tokenizer_sha256": self.tokenizer_sha256,
                "seq_len": str(self.seq_len),
            },
        )


@dataclass(frozen=True)
class ShardView:
    """A memory-mapped shard; nothing is read before it is used."""

    tokens: NDArray[Any]
    """Shape (rows, seq_len), uint16 or uint32."""
    document_splits: NDArray[np.int32]
    """Row r holds the documents document_splits[r] to document_splits[r + 1], shape (rows + 1,)."""
    document_lengths: NDArray[np.int32]
    effective_tokens: NDArray[np.int32]


def smallest_dtype(vocab_size: int) -> str:
    """The narrowest integer type that holds every id of a vocabulary."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def to_dtype(ids: NDArray[np.uint32], dtype: str) -> NDArray[Any]:
    """Store ids in a narrower type, never wrapped round.

    Raises:
        StayerError: an id does not fit.
    """
    if ids.size and int(ids.max()) > np.iinfo(dtype).max:
        raise StayerError(f"token id {ids.max()} does not fit {dtype}: the tokenizer emits ids beyond its vocabulary")
    return ids.astype(dtype)


def write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> WrittenFile:
    """Write an uncompressed Arrow IPC file that appears under its name when it is whole."""
    with storage.write_atomic(str(path)) as file:
        sink = _HashingSink(file)
        with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    return WrittenFile(file=path.name, size_bytes=sink.size_bytes, sha256=sink.digest.hexdigest())


def write_shards(
    folder: Path, prefix: str, tokens: NDArray[Any], plan: RowPlan, shard: ShardFormat, *, rows_per_shard: int
) -> list[ShardFile]:
    """Fill the planned rows and write them as `<prefix>-<n>.arrow`; memory is one shard at a time."""
    files = []
    for first in range(0, plan.num_rows, rows_per_shard):
        part = plan.select(np.arange(first, min(first + rows_per_shard, plan.num_rows)))
        path = folder / f"{prefix}-{first // rows_per_shard:05d}.arrow"
        files.append(_write_shard(path, tokens, part, shard))
    return files


def _write_shard(path: Path, tokens: NDArray[Any], plan: RowPlan, shard: ShardFormat) -> ShardFile:
    schema = shard.schema()
    rows = fill_rows(tokens, plan, seq_len=shard.seq_len, pad_id=shard.pad_id)
    effective = plan.row_tokens()
    columns = [
        pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=schema.field("input_ids").type),
        pa.ListArray.from_arrays(
            pa.array(plan.row_splits.astype(np.int32)),
            pa.array(plan.piece_lengths.astype(np.int32)),
            type=schema.field("document_lengths").type,
        ),
        pa.array(effective.astype(np.int32)),
    ]
    written = write_batches(path, schema, [pa.record_batch(columns, schema=schema)])
    return ShardFile(
        **written.model_dump(),
        rows=plan.num_rows,
        effective_tokens=int(effective.sum()),
        documents=plan.piece_lengths.size,
    )


def open_shard(path: Path, expected: ShardFile) -> ShardView:
    """Memory-map a shard.

    Raises:
        StayerError: the file does not have the rows the manifest lists.
    """
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batch = reader.get_batch(0)
    except (pa.ArrowInvalid, OSError) as err:
        raise StayerError(f"{path}: not a readable shard ({err})", hint="prepare the dataset again") from err
    if batch.num_rows != expected.rows:
        raise StayerError(f"{path} holds {batch.num_rows} rows, the manifest lists {expected.rows}")
    documents = batch.column("document_lengths")
    return ShardView(
        tokens=batch.column("input_ids").values.to_numpy(zero_copy_only=True).reshape(expected.rows, -1),
        document_splits=documents.offsets.to_numpy(zero_copy_only=True),
        document_lengths=documents.values.to_numpy(zero_copy_only=True),
        effective_tokens=batch.column("effective_tokens").to_numpy(zero_copy_only=True),
    )


def token_schema(dtype: str) -> pa.Schema:
    """Columns of a token file: documents (or pieces of them) that have no row yet."""
    tokens = pa.list_(_arrow_type(dtype))
    return pa.schema([pa.field("id", pa.binary(16)), pa.field("tokens", tokens, nullable=False)])


def token_batch(ids: Sequence[bytes | None], tokens: NDArray[Any], lengths: NDArray[np.int64]) -> pa.RecordBatch:
    """A batch of a token file: document ids (None for a piece), their tokens in one array, and tokens per document."""
    splits = np.concatenate([[0], np.cumsum(lengths)])
    assert splits[-1] < 1 << 31, "one batch of a token file holds fewer than 2^31 tokens"
    lists = pa.ListArray.from_arrays(pa.array(splits.astype(np.int32)), pa.array(tokens))
    schema = token_schema(str(tokens.dtype))
    return pa.record_batch([pa.array(ids, type=pa.binary(16)), lists.cast(schema.field("tokens").type)], schema=schema)


@dataclass(frozen=True)
class TokenBatch:
    """A batch read from a token file."""

    ids: Any
    """Arrow array of 16-byte document ids."""
    tokens: NDArray[Any]
    lengths: NDArray[np.int64]


def read_token_batches(folder: Path, written: WrittenFile, numbers: Iterable[int]) -> list[TokenBatch]:
    """Read some batches of a token file, by number; arrays point into the memory-mapped file.

    Raises:
        StayerError: the file is not as it was written.
    """
    if problem := written.problem(folder, check_content=False):
        raise StayerError(f"{folder}: {problem}", hint="run the preparation again, it redoes what is damaged")
    reader = pa.ipc.open_file(pa.memory_map(str(folder / written.file)))
    found = []
    for number in numbers:
        batch = reader.get_batch(number)
        lists = batch.column("tokens")
        lengths = np.diff(lists.offsets.to_numpy(zero_copy_only=True)).astype(np.int64)
        found.append(TokenBatch(batch.column("id"), lists.values.to_numpy(zero_copy_only=True), lengths))
    return found


def _arrow_type(dtype: str) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype(dtype))


class _HashingSink:
    """Digests what is written on its way to the file: what the disk does later cannot hide in the hash."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: Any) -> int:
        self.digest.update(data)
        self.size_bytes += len(data)
        return int(self._file.write(data))

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """The file is closed by who opened it."""
