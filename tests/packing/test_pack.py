import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.pack import RowPlan, fill_rows, plan_rows

LENGTHS = st.lists(st.integers(1, 40), max_size=60)
SEQ_LENS = st.integers(8, 24)


def plan_of(lengths, seq_len, strategy) -> RowPlan:
    lengths = np.array(lengths, dtype=np.int64)
    return plan_rows(np.cumsum(lengths) - lengths, lengths, seq_len=seq_len, strategy=strategy)


def pieces_by_row(plan: RowPlan) -> list[list[tuple[int, int]]]:
    """Rows as lists of (start, length)."""
    pieces = list(zip(plan.piece_starts.tolist(), plan.piece_lengths.tolist(), strict=True))
    return [pieces[a:b] for a, b in zip(plan.row_splits[:-1].tolist(), plan.row_splits[1:].tolist(), strict=True)]


def naive_concat(lengths, seq_len):
    """The reference: walk token by token through the documents, opening a row whenever one is full."""
    rows, used, start = [], seq_len, 0
    for length in lengths:
        for offset in range(length):
            if used == seq_len:
                rows.append([])
                used = 0
            if offset == 0 or used == 0:
                rows[-1].append((start + offset, 0))
            rows[-1][-1] = (rows[-1][-1][0], rows[-1][-1][1] + 1)
            used += 1
        start += length
    return rows


def naive_best_fit(lengths, seq_len):
    """The reference: cut long documents, sort, and look through all rows for the fullest that still has room.

    Returns tokens per row, sorted: which of two equally full rows takes a piece is open.
    """
    pieces = [n for length in lengths for n in [seq_len] * (length // seq_len) + [length % seq_len] if n]
    rows = []
    for piece in sorted(pieces, reverse=True):
        fitting = [row for row in range(len(rows)) if rows[row] + piece <= seq_len]
        if fitting:
            rows[max(fitting, key=rows.__getitem__)] += piece
        else:
            rows.append(piece)
    return sorted(rows)


@settings(deadline=None)
@given(LENGTHS, SEQ_LENS)
def test_concat_equals_the_naive_packer(lengths, seq_len):
    assert pieces_by_row(plan_of(lengths, seq_len, "concat")) == naive_concat(lengths, seq_len)


@settings(deadline=None)
@given(LENGTHS, SEQ_LENS)
def test_best_fit_fills_rows_as_the_naive_packer_does(lengths, seq_len):
    filled = plan_of(lengths, seq_len, "best_fit").row_tokens()
    assert sorted(filled.tolist()) == naive_best_fit(lengths, seq_len)


@settings(deadline=None)
@given(LENGTHS, SEQ_LENS, st.sampled_from(["concat", "best_fit"]))
def test_every_token_has_one_place_and_no_row_overflows(lengths, seq_len, strategy):
    plan = plan_of(lengths, seq_len, strategy)
    tokens = np.arange(sum(lengths), dtype=np.uint32)
    rows = fill_rows(tokens, plan, seq_len=seq_len, pad_id=99_999)
    assert sorted(rows[rows != 99_999].tolist()) == tokens.tolist()
    assert (plan.row_tokens() <= seq_len).all()
    assert (plan.row_tokens() > 0).all()
    for row, used in zip(rows, plan.row_tokens(), strict=True):
        assert (row[used:] == 99_999).all()
        assert 99_999 not in row[:used]


@settings(deadline=None)
@given(LENGTHS, SEQ_LENS)
def test_concat_has_room_left_in_the_last_row_only(lengths, seq_len):
    assert (plan_of(lengths, seq_len, "concat").row_tokens()[:-1] == seq_len).all()


@settings(deadline=None)
@given(LENGTHS, SEQ_LENS)
def test_best_fit_never_splits_what_fits_a_row_and_leaves_one_loose_row_at_most(lengths, seq_len):
    plan = plan_of(lengths, seq_len, "best_fit")
    whole = {(int(s), n) for s, n in zip(np.cumsum(lengths) - lengths, lengths, strict=True) if n <= seq_len}
    assert whole <= {piece for row in pieces_by_row(plan) for piece in row}
    assert (plan.row_tokens() * 2 < seq_len).sum() <= 1


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_a_thousand_documents_of_every_length_lose_nothing(strategy):
    lengths = np.arange(1, 1001)
    tokens = np.arange(lengths.sum(), dtype=np.uint32)
    rows = fill_rows(tokens, plan_of(lengths, 512, strategy), seq_len=512, pad_id=1 << 31)
    assert np.array_equal(np.sort(rows[rows != 1 << 31]), tokens)
    assert rows.size - tokens.size < 0.01 * tokens.size


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_a_long_document_stays_in_order_without_overlap(strategy):
    tokens = np.arange(5 * 16 + 3, dtype=np.uint32)
    rows = fill_rows(tokens, plan_of([tokens.size], 16, strategy), seq_len=16, pad_id=0)
    assert rows.reshape(-1)[: tokens.size].tolist() == tokens.tolist()


def test_selecting_rows_keeps_their_pieces_in_the_order_asked_for():
    plan = plan_of([5, 3, 8, 7, 20], 10, "best_fit")
    rows = pieces_by_row(plan)
    assert pieces_by_row(plan.select(np.array([2, 0]))) == [rows[2], rows[0]]


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_no_documents_make_no_rows(strategy):
    plan = plan_of([], 16, strategy)
    assert plan.num_rows == 0
    assert fill_rows(np.empty(0, np.uint16), plan, seq_len=16, pad_id=0).shape == (0, 16)
