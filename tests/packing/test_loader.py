import threading

import numpy as np
import pytest

from packing.dataset import PackedDataset
from packing.loader import Loader
from packing.order import sequence_at
from packing.rows import IGNORED


@pytest.fixture
def dataset(make_dataset, word_tokenizer) -> PackedDataset:
    """25 rows in shards of at most 10; each row is full of one document."""
    texts = [f"w{n} " + "w0 w1 w2 " * 2 for n in range(25)]
    folder, manifest = make_dataset(texts, tokenizer=word_tokenizer(40), seq_len=8, buckets=1, rows_per_shard=10)
    assert manifest.rows == 25
    return PackedDataset(folder)


def steps(dataset, *, world_size=1, rank=0, batch=8, micro=2, total=25, start=0, seed=3):
    with Loader(
        dataset,
        global_batch_rows=batch,
        micro_batch_rows=micro,
        rank=rank,
        world_size=world_size,
        total_rows=total,
        seed=seed,
        start_position=start,
    ) as loader:
        return list(loader)


@pytest.mark.parametrize("micro", [1, 2, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_any_number_of_ranks_makes_the_same_global_batches(dataset, world_size, micro):
    ranks = [steps(dataset, world_size=world_size, rank=rank, micro=micro, total=60) for rank in range(world_size)]
    reference = steps(dataset, total=60)
    assert {len(rank) for rank in ranks} == {len(reference)} == {8}
    for number, expected in enumerate(reference):
        shares = [rank[number] for rank in ranks]
        assert {len(share.micro_batches) for share in shares} == {-(-expected.step_rows // (world_size * micro))}
        for share in shares:
            assert share.sequence_ids.tolist() == expected.sequence_ids.tolist()
            assert (share.num_targets, share.step_rows) == (expected.num_targets, expected.step_rows)
            assert share.effective_tokens == expected.effective_tokens
            assert all(m.input_ids.shape == (micro, 8) for m in share.micro_batches)
        order = [share.micro_batches[m] for m in range(len(shares[0].micro_batches)) for share in shares]
        ids = np.concatenate([m.input_ids for m in order])
        labels = np.concatenate([m.labels for m in order])
        assert np.array_equal(ids[: expected.step_rows], dataset.rows(expected.sequence_ids).input_ids)
        assert (labels[expected.step_rows :] == IGNORED).all()
        assert (labels != IGNORED).sum() == expected.num_targets


def test_shards_of_unequal_size_give_every_rank_the_same_steps(dataset):
    ranks = [steps(dataset, world_size=2, rank=rank, batch=4) for rank in range(2)]
    assert [step.step_rows for step in ranks[0]] == [4] * 6 + [1]
    assert [step.step_rows for step in ranks[1]] == [4] * 6 + [1]
    assert np.concatenate([step.sequence_ids for step in ranks[0]]).tolist() == list(range(25))


@pytest.mark.parametrize("finished_steps", [0, 1, 7, 12, 13, 25, 37])
def test_resuming_anywhere_continues_the_undisturbed_order(dataset, finished_steps):
    undisturbed = steps(dataset, batch=2, total=75)
    resumed = steps(dataset, batch=2, total=75, start=2 * finished_steps)
    assert [s.sequence_ids.tolist() for s in resumed] == [s.sequence_ids.tolist() for s in undisturbed[finished_steps:]]
    assert [s.position for s in resumed] == [s.position for s in undisturbed[finished_steps:]]


def test_changing_the_number_of_ranks_on_the_way_changes_no_batch(dataset):
    undisturbed = steps(dataset, total=75)
    mixed = steps(dataset, world_size=2, total=75)[:3]
    mixed += steps(dataset, world_size=1, total=75, start=24)[:2]
    mixed += steps(dataset, world_size=4, rank=3, total=75, start=40)
    assert [s.sequence_ids.tolist() for s in mixed] == [s.sequence_ids.tolist() for s in undisturbed]


@pytest.mark.parametrize("start", [0, 14, 25, 26])
def test_every_epoch_is_complete_after_a_resume(dataset, start):
    ids = np.concatenate([s.sequence_ids for s in steps(dataset, batch=2, total=75, start=start)])
    stream = np.concatenate([sequence_at(np.arange(start), num_rows=25, seed=3), ids])
    for epoch in stream.reshape(3, 25):
        assert sorted(epoch) == list(range(25))
    assert stream[:25].tolist() == list(range(25))


def test_the_last_step_takes_what_remains(dataset):
    assert [s.step_rows for s in steps(dataset, total=20)] == [8, 8, 4]
    assert steps(dataset, total=20, start=20) == []


def test_a_failure_while_reading_ahead_reaches_the_consumer(dataset, monkeypatch):
    read = dataset.rows

    def rows(indices):
        if 10 in indices:
            raise OSError("disk gone")
        return read(indices)

    monkeypatch.setattr(dataset, "rows", rows)
    loader = Loader(
        dataset, global_batch_rows=8, micro_batch_rows=8, rank=0, world_size=1, total_rows=25, seed=0, start_position=0
    )
    assert next(loader).step_rows == 8
    with pytest.raises(OSError, match="disk gone"):
        next(loader)
    assert list(loader) == []


def test_reading_ahead_is_bounded_and_closing_ends_the_thread(dataset, monkeypatch):
    reads, read, enough = [], dataset.rows, threading.Event()

    def rows(indices):
        reads.append(indices)
        if len(reads) == 4:
            enough.set()
        return read(indices)

    monkeypatch.setattr(dataset, "rows", rows)
    before = threading.active_count()
    loader = Loader(
        dataset,
        global_batch_rows=1,
        micro_batch_rows=1,
        rank=0,
        world_size=1,
        total_rows=10**9,
        seed=0,
        start_position=0,
    )
    assert enough.wait(timeout=30)
    assert threading.active_count() == before + 1
    batch = next(loader)
    assert batch.wait_s >= 0
    loader.close()
    loader.close()
    assert len(reads) <= 6
    assert threading.active_count() == before
    assert list(loader) == []
