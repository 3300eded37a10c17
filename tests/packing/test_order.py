import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packing.order import sequence_at, shuffled


def test_the_first_epoch_keeps_the_order_of_the_shards():
    assert sequence_at(np.arange(10), num_rows=10, seed=3).tolist() == list(range(10))


@settings(deadline=None, max_examples=60)
@given(num_rows=st.integers(1, 700), seed=st.integers(0, 2**70), epoch=st.integers(1, 2**20))
def test_every_epoch_holds_every_row_exactly_once(num_rows, seed, epoch):
    positions = np.arange(epoch * num_rows, (epoch + 1) * num_rows)
    assert np.array_equal(np.sort(sequence_at(positions, num_rows=num_rows, seed=seed)), np.arange(num_rows))


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 16, 17, 4095, 4096, 4097, 65_537])
def test_epochs_are_permutations_around_powers_of_two(num_rows):
    rows = sequence_at(np.arange(num_rows, 3 * num_rows), num_rows=num_rows, seed=1).reshape(2, num_rows)
    assert np.array_equal(np.sort(rows, axis=1), np.broadcast_to(np.arange(num_rows), (2, num_rows)))


def test_a_position_maps_to_the_same_row_however_it_is_asked_for():
    positions = np.arange(95, 330)
    together = sequence_at(positions, num_rows=100, seed=5)
    alone = [sequence_at(positions[i : i + 1], num_rows=100, seed=5)[0] for i in range(positions.size)]
    assert together.tolist() == alone


def test_later_epochs_differ_from_each_other_and_between_seeds():
    orders = [
        sequence_at(np.arange(e * 50, (e + 1) * 50), num_rows=50, seed=s).tolist() for e in (1, 2) for s in (0, 1)
    ]
    assert len({tuple(order) for order in orders}) == 4


def test_an_epoch_of_a_huge_dataset_needs_no_memory():
    rows = sequence_at(np.array([10**12 + 5, 10**12 + 6]), num_rows=10**12, seed=0)
    assert rows.min() >= 0
    assert rows.max() < 10**12


def test_positions_land_evenly_in_a_later_epoch():
    # The mean of 1,000 rows drawn without order from 100,000: 50,000 ± 4 standard errors of 913.
    rows = sequence_at(np.arange(100_000, 101_000), num_rows=100_000, seed=11)
    assert abs(rows.mean() - 50_000) < 4 * 913


def test_a_shuffle_is_a_permutation_decided_by_its_key():
    assert sorted(shuffled(1000, 1, 2)) == list(range(1000))
    assert shuffled(1000, 1, 2).tolist() == shuffled(1000, 1, 2).tolist()
    assert shuffled(1000, 1, 2).tolist() != shuffled(1000, 2, 1).tolist()


def test_orders_never_change_between_versions():
    # Written down once: another order here would silently break the resume of every run.
    assert sequence_at(np.arange(10, 20), num_rows=10, seed=7).tolist() == [9, 7, 8, 0, 1, 2, 5, 6, 4, 3]
    assert shuffled(8, 7, 1).tolist() == [6, 4, 2, 0, 7, 1, 3, 5]
