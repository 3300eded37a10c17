from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infra import storage
from infra.errors import InputError
from packing.manifest import Manifest, load_manifest
from packing.rows import Rows
from packing.shards import ShardView, open_shard

# Every open shard holds a file descriptor, and a process often has 1,024.
_MAX_OPEN_SHARDS = 256


class PackedDataset:
    """Rows of one split of a packed dataset, by number; opening and seeking cost the same anywhere.

    Shards are memory-mapped when they are first touched. Their sizes are checked against the manifest at once and
    their row counts when touched; their content is checked by `verify_dataset`.

    Raises:
        InputError: the folder is no finished dataset, has no such split, or a shard is missing or torn.
    """

    def __init__(self, folder: str, split: str = "train") -> None:
        self.manifest: Manifest = load_manifest(folder)
        self._folder: Path = storage.local_path(folder)
        self._shards = self.manifest.split(split)
        for shard in self._shards:
            if problem := shard.problem(self._folder, check_content=False):
                raise InputError(f"{folder}: {problem}", hint="delete the folder and prepare the data again")
        self._ends = np.cumsum([shard.rows for shard in self._shards], dtype=np.int64)
        self._view = lru_cache(maxsize=_MAX_OPEN_SHARDS)(self._open)

    @property
    def num_rows(self) -> int:
        """Rows in the split."""
        return int(self._ends[-1]) if self._ends.size else 0

    @property
    def seq_len(self) -> int:
        """Tokens per row, padding included."""
        return self.manifest.seq_len

    def rows(self, indices: NDArray[np.int64]) -> Rows:
        """Rows in the order asked for.

        Args:
            indices: row numbers, shape (n,), each in 0..num_rows-1.
        """
        input_ids = np.empty((indices.size, self.seq_len), dtype=np.int64)
        lengths: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * indices.size
        for view, places, rows in self._by_shard(indices):
            input_ids[places] = view.tokens[rows]
            for place, row in zip(places.tolist(), rows.tolist(), strict=True):
                first, end = view.document_splits[row], view.document_splits[row + 1]
                lengths[place] = view.document_lengths[first:end].astype(np.int64)
        return Rows(input_ids, lengths)

    def effective_tokens(self, indices: NDArray[np.int64]) -> int:
        """Tokens in these rows that are no padding; reads no tokens."""
        return sum(int(view.effective_tokens[rows].sum()) for view, _, rows in self._by_shard(indices))

    def num_targets(self, indices: NDArray[np.int64]) -> int:
        """Labels in these rows that carry loss: every token but the last of each document; reads no tokens."""
        documents = sum(
            int((view.document_splits[rows + 1] - view.document_splits[rows]).sum())
            for view, _, rows in self._by_shard(indices)
        )
        return self.effective_tokens(indices) - documents

    def _open(self, number: int) -> ShardView:
        shard = self._shards[number]
        return open_shard(self._folder / shard.file, shard)

    def _by_shard(self, indices: NDArray[np.int64]) -> Iterator[tuple[ShardView, NDArray[np.int64], NDArray[np.int64]]]:
        """For each shard concerned: its view, places in `indices`, and rows within the shard."""
        assert not indices.size or (indices.min() >= 0 and indices.max() < self.num_rows), "no such row"
        numbers = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            first = int(self._ends[number]) - self._shards[number].rows
            yield self._view(number), places, indices[places] - first
