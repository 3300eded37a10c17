"""From document lengths to rows: pure arithmetic on arrays, no tokens are touched before `fill_rows`.

A piece is a document or a part of one that lies in a single row.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RowPlan:
    """Which pieces make which row."""

    piece_starts: NDArray[np.int64]
    """Where each piece begins in the token array, shape (num_pieces,), in row order."""
    piece_lengths: NDArray[np.int64]
    """Tokens per piece, shape (num_pieces,)."""
    row_splits: NDArray[np.int64]
    """Row r holds the pieces row_splits[r] to row_splits[r + 1], shape (num_rows + 1,)."""

    @property
    def num_rows(self) -> int:
        """Rows planned."""
        return self.row_splits.size - 1

    def row_tokens(self) -> NDArray[np.int64]:
        """Tokens per row, padding not counted, shape (num_rows,)."""
        before = np.concatenate([[0], np.cumsum(self.piece_lengths)])
        return np.diff(before[self.row_splits])

    def select(self, rows: NDArray[np.int64]) -> "RowPlan":
        """The plan of some rows, in the order given."""
        counts = np.diff(self.row_splits)[rows]
        splits = np.concatenate([[0], np.cumsum(counts)])
        pieces = np.repeat(self.row_splits[rows] - splits[:-1], counts) + np.arange(splits[-1])
        return RowPlan(self.piece_starts[pieces], self.piece_lengths[pieces], splits)


def plan_rows(
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    *,
    seq_len: int,
    strategy: Literal["concat", "best_fit"],
) -> RowPlan:
    """Give every token of every document its row.

    Args:
        starts: where each document begins in the token array, shape (num_docs,).
        lengths: tokens per document, shape (num_docs,), each at least 1.
        seq_len: row capacity in tokens.
        strategy: `concat` fills row after row, cutting documents where a row ends; only the last row may have
            room left. `best_fit` cuts only documents longer than a row, and leaves rows with room at their ends.

    Returns:
        A plan that holds every token exactly once. Deterministic.
    """
    plan = _plan_concat if strategy == "concat" else _plan_best_fit
    return plan(starts, lengths, seq_len)


def _plan_concat(starts: NDArray[np.int64], lengths: NDArray[np.int64], seq_len: int) -> RowPlan:
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    num_rows = -(-total // seq_len)
    cuts = np.union1d(ends - lengths, np.arange(num_rows) * seq_len)
    docs = np.searchsorted(ends, cuts, side="right")
    piece_starts = starts[docs] + cuts - (ends - lengths)[docs]
    row_splits = np.searchsorted(cuts, np.arange(num_rows + 1) * seq_len)
    return RowPlan(piece_starts, np.diff(cuts, append=total), row_splits.astype(np.int64))


def _plan_best_fit(starts: NDArray[np.int64], lengths: NDArray[np.int64], seq_len: int) -> RowPlan:
    num_pieces = -(-lengths // seq_len)
    docs = np.repeat(np.arange(lengths.size), num_pieces)
    skipped = (np.arange(docs.size) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)) * seq_len
    piece_lengths = np.minimum(lengths[docs] - skipped, seq_len)
    row_of, num_rows = _best_fit_decreasing(piece_lengths, seq_len)
    order = np.argsort(row_of, kind="stable")
    row_splits = np.searchsorted(row_of[order], np.arange(num_rows + 1)).astype(np.int64)
    return RowPlan((starts[docs] + skipped)[order], piece_lengths[order], row_splits)


def _best_fit_decreasing(lengths: NDArray[np.int64], capacity: int) -> tuple[NDArray[np.int64], int]:
    """Longest first, each piece into the fullest row that still holds it; also returns the number of rows.

    Rows are kept by the room they have left, and a bit set tells which rooms exist, so that the tightest fit
    is found in a few machine instructions. Pieces of one length are placed together, which makes the work grow
    with the number of different lengths rather than of pieces.

    Source: best-fit decreasing as in Ding et al. 2024, arXiv:2404.10830.
    """
    order = np.argsort(-lengths, kind="stable")
    values, counts = np.unique(lengths, return_counts=True)
    row_of = np.empty(lengths.size, dtype=np.int64)
    rows_with_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = 0  # bit r is set while rows_with_room[r] is not empty
    num_rows = done = 0
    for length, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        left = count
        while left:
            tight = rooms >> length
            if tight:
                room = length + (tight & -tight).bit_length() - 1
                stack = rows_with_room[room]
            else:
                room = capacity
                stack = list(range(num_rows, num_rows - (-left // (capacity // length))))
                num_rows += len(stack)
            per_row = room // length
            used = min(len(stack), -(-left // per_row))
            rows, stack[-used:] = stack[-used:], []
            if not stack:
                rooms &= ~(1 << room)
            placed = min(left, used * per_row)
            row_of[order[done : done + placed]] = np.repeat(rows, per_row)[:placed]
            # Every row took per_row pieces but the last, which may have run out of pieces.
            for row, taken in ((rows[:-1], per_row), (rows[-1:], placed - (used - 1) * per_row)):
                if row:
                    rows_with_room[room - taken * length].extend(row)
                    rooms |= 1 << (room - taken * length)
            done += placed
            left -= placed
    return row_of, num_rows


def fill_rows(tokens: NDArray[Any], plan: RowPlan, *, seq_len: int, pad_id: int) -> NDArray[Any]:
    """Copy the planned pieces into rows.

    Args:
        tokens: flat token array that the plan's starts point into, shape (num_tokens,).
        plan: rows to fill.
        seq_len: row capacity in tokens.
        pad_id: what stands behind the last piece of a row.

    Returns:
        Shape (num_rows, seq_len), dtype of `tokens`.
    """
    rows = np.full((plan.num_rows, seq_len), pad_id, dtype=tokens.dtype)
    flat = rows.reshape(-1)
    before = np.cumsum(plan.piece_lengths) - plan.piece_lengths
    pieces_per_row = np.diff(plan.row_splits)
    row_before = np.append(before, plan.piece_lengths.sum())[plan.row_splits[:-1]]
    shift = np.arange(plan.num_rows) * seq_len - row_before
    targets = before + np.repeat(shift, pieces_per_row)
    for target, start, length in zip(
        targets.tolist(), plan.piece_starts.tolist(), plan.piece_lengths.tolist(), strict=True
    ):
        flat[target : target + length] = tokens[start : start + length]
    return rows
