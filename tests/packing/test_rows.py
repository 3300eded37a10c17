import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.rows import IGNORED, Rows, model_inputs, with_fillers


def make_rows(lengths_by_row, seq_len):
    lengths = [np.array(row, dtype=np.int64) for row in lengths_by_row]
    ids = np.arange(1, len(lengths) * seq_len + 1, dtype=np.int64).reshape(len(lengths), seq_len)
    return Rows(ids, lengths)


def naive_inputs(rows):
    """The reference: token by token."""
    positions, labels = np.zeros_like(rows.input_ids), np.full_like(rows.input_ids, IGNORED)
    for r, lengths in enumerate(rows.document_lengths):
        start = 0
        for length in lengths.tolist():
            for i in range(length):
                positions[r, start + i] = i
                if i < length - 1:
                    labels[r, start + i] = rows.input_ids[r, start + i + 1]
            start += length
        for i in range(start, rows.input_ids.shape[1]):
            positions[r, i] = i - start
    return positions, labels


def test_the_last_token_of_each_document_has_no_label():
    inputs = model_inputs(make_rows([[5, 3, 8]], 16))
    assert (inputs.labels == IGNORED).sum() == 3
    assert np.flatnonzero(inputs.labels[0] == IGNORED).tolist() == [4, 7, 15]
    assert inputs.labels[0].tolist() == [2, 3, 4, 5, -100, 7, 8, -100, *range(10, 17), -100]
    assert inputs.position_ids[0].tolist() == [*range(5), *range(3), *range(8)]


def test_padding_is_a_document_of_its_own_without_labels():
    inputs = model_inputs(make_rows([[3, 2]], 10))
    assert inputs.position_ids[0].tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 3, 4]
    assert (inputs.labels[0] != IGNORED).sum() == 5 - 2


@st.composite
def packed_rows(draw):
    seq_len = draw(st.integers(1, 20))
    rows = []
    for _ in range(draw(st.integers(0, 5))):
        ends = sorted(draw(st.sets(st.integers(1, seq_len), max_size=6)))
        rows.append(np.diff([0, *ends]).tolist())
    return make_rows(rows, seq_len)


@settings(deadline=None)
@given(packed_rows())
def test_positions_and_labels_equal_the_naive_ones(rows):
    positions, labels = naive_inputs(rows)
    inputs = model_inputs(rows)
    assert np.array_equal(inputs.position_ids, positions)
    assert np.array_equal(inputs.labels, labels)


@settings(deadline=None)
@given(packed_rows(), st.integers(0, 3))
def test_fillers_complete_a_micro_batch_and_carry_no_loss(rows, missing):
    num_rows = len(rows.document_lengths) + missing
    inputs = with_fillers(model_inputs(rows), num_rows, pad_id=7)
    fillers = slice(len(rows.document_lengths), None)
    assert inputs.input_ids.shape == inputs.labels.shape == inputs.position_ids.shape
    assert inputs.input_ids.shape[0] == num_rows
    assert (inputs.input_ids[fillers] == 7).all()
    assert (inputs.labels[fillers] == IGNORED).all()
    assert {a.dtype for a in (inputs.input_ids, inputs.labels, inputs.position_ids)} == {np.dtype(np.int64)}
