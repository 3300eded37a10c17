import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from packing.dataset import PackedDataset
from packing.order import sequence_at
from packing.rows import ModelInputs, model_inputs, with_fillers

_READ_AHEAD_STEPS = 4


@dataclass(frozen=True)
class StepBatch:
    """One rank's share of a step, and what it must know of the whole."""

    position: int
    """Sequences consumed before this step."""
    step_rows: int
    """Rows of the whole step; add them to `position` once the step is done."""
    num_targets: int
    """Labels that carry loss in the whole step."""
    effective_tokens: int
    """Tokens of the whole step that are no padding."""
    sequence_ids: NDArray[np.int64]
    """Dataset rows of the whole step, in order, shape (step_rows,)."""
    micro_batches: list[ModelInputs]
    """This rank's rows, `micro_batch_rows` each; as many on every rank."""
    wait_s: float = 0.0
    """How long the consumer stood still for it."""


class Loader:
    """Steps for one rank, read ahead in a background thread.

    Which rows make a step depends on position and global batch alone. Micro-batch m of rank r takes the rows
    [position + (m · world_size + r) · micro_batch_rows, + micro_batch_rows) of the stream; where that runs past the
    step it is filled with rows of padding, so that all ranks run equally many micro-batches whatever their number.
    The last step takes what remains up to `total_rows`.

    Args:
        dataset: rows to train on.
        global_batch_rows: rows per step, all ranks together.
        micro_batch_rows: rows per rank and forward pass.
        rank: this rank, in 0..world_size-1.
        world_size: ranks that share the step.
        total_rows: position at which training ends; may exceed the dataset (epochs).
        seed: order of the epochs after the first.
        start_position: sequences consumed before.
    """

    def __init__(
        self,
        dataset: PackedDataset,
        *,
        global_batch_rows: int,
        micro_batch_rows: int,
        rank: int,
        world_size: int,
        total_rows: int,
        seed: int,
        start_position: int = 0,
    ) -> None:
        assert global_batch_rows > 0 and micro_batch_rows > 0 and 0 <= rank < world_size and start_position >= 0
        self._dataset = dataset
        self._global_batch_rows = global_batch_rows
        self._micro_batch_rows = micro_batch_rows
        self._rank = rank
        self._world_size = world_size
        self._total_rows = total_rows
        self._seed = seed
        # A free slot is asked for before a step is read, so at most this many steps are in memory unconsumed.
        self._slots = threading.Semaphore(_READ_AHEAD_STEPS)
        self._ready: queue.SimpleQueue[StepBatch | BaseException | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=self._read_ahead, args=(start_position,), name="packing-loader", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[StepBatch]:
        return self

    def __next__(self) -> StepBatch:
        if self._closed.is_set():
            raise StopIteration
        began = time.perf_counter()
        item = self._ready.get()
        wait_s = time.perf_counter() - began
        if isinstance(item, StepBatch):
            self._slots.release()
            return replace(item, wait_s=wait_s)
        self.close()
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        """End the thread; further iteration ends at once."""
        self._closed.set()
        self._slots.release()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_ahead(self, position: int) -> None:
        try:
            while position < self._total_rows:
                self._slots.acquire()
                if self._closed.is_set():
                    return
                batch = self._read(position)
                self._ready.put(batch)
                position += batch.step_rows
            self._ready.put(None)
        except BaseException as err:  # whatever it is, the consumer must hear of it instead of waiting for ever
            self._ready.put(err)

    def _read(self, position: int) -> StepBatch:
        step_rows = min(self._global_batch_rows, self._total_rows - position)
        stream = np.arange(position, position + step_rows, dtype=np.int64)
        sequence_ids = sequence_at(stream, num_rows=self._dataset.num_rows, seed=self._seed)
        rows_per_pass = self._world_size * self._micro_batch_rows
        firsts = range(
            self._rank * self._micro_batch_rows, -(-step_rows // rows_per_pass) * rows_per_pass, rows_per_pass
        )
        return StepBatch(
            position=position,
            step_rows=step_rows,
            num_targets=self._dataset.num_targets(sequence_ids),
            effective_tokens=self._dataset.effective_tokens(sequence_ids),
            sequence_ids=sequence_ids,
            micro_batches=[self._micro_batch(sequence_ids[first : first + self._micro_batch_rows]) for first in firsts],
        )

    def _micro_batch(self, sequence_ids: NDArray[np.int64]) -> ModelInputs:
        inputs = model_inputs(self._dataset.rows(sequence_ids))
        return with_fillers(inputs, self._micro_batch_rows, pad_id=self._dataset.manifest.pad_id)
