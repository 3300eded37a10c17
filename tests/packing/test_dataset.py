from pathlib import Path

import numpy as np
import pytest

from infra.errors import InputError
from packing import dataset as dataset_module
from packing.dataset import PackedDataset
from packing.rows import IGNORED, model_inputs


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_rows_come_in_the_order_asked_for_across_shards(make_dataset, texts, strategy):
    folder, manifest = make_dataset(texts, rows_per_shard=7, strategy=strategy)
    dataset = PackedDataset(folder)
    assert dataset.num_rows == manifest.rows > 14
    everything = dataset.rows(np.arange(dataset.num_rows))
    asked = np.array([13, 0, dataset.num_rows - 1, 7, 6, 0])
    some = dataset.rows(asked)
    assert np.array_equal(some.input_ids, everything.input_ids[asked])
    assert all(
        np.array_equal(a, everything.document_lengths[row]) for a, row in zip(some.document_lengths, asked, strict=True)
    )


def test_targets_and_effective_tokens_agree_with_the_labels(make_dataset, texts):
    folder, _ = make_dataset(texts, strategy="best_fit", held_out_fraction=0.1)
    for split in ("train", "held-out/docs"):
        dataset = PackedDataset(folder, split)
        for indices in (np.arange(dataset.num_rows), np.array([dataset.num_rows - 1]), np.empty(0, np.int64)):
            rows = dataset.rows(indices)
            assert dataset.num_targets(indices) == (model_inputs(rows).labels != IGNORED).sum()
            assert dataset.effective_tokens(indices) == sum(int(n.sum()) for n in rows.document_lengths)


def test_no_more_shards_stay_open_than_allowed(make_dataset, texts, monkeypatch):
    monkeypatch.setattr(dataset_module, "_MAX_OPEN_SHARDS", 2)
    folder, _ = make_dataset(texts, rows_per_shard=2)
    dataset = PackedDataset(folder)
    everything = dataset.rows(np.arange(dataset.num_rows)).input_ids
    backwards = dataset.rows(np.arange(dataset.num_rows)[::-1]).input_ids
    assert np.array_equal(everything, backwards[::-1])
    assert dataset._view.cache_info().currsize == 2


def test_an_unknown_split_names_those_there_are(make_dataset, texts):
    folder, _ = make_dataset(texts, held_out_fraction=0.1)
    with pytest.raises(InputError, match="no split 'test', it has train, held-out/docs"):
        PackedDataset(folder, "test")


@pytest.mark.parametrize("damage", [lambda raw: raw[:-10], lambda raw: b""])
def test_a_torn_or_missing_shard_is_refused_at_opening(make_dataset, texts, damage):
    folder, manifest = make_dataset(texts)
    shard = Path(folder, manifest.shards[-1].file)
    shard.write_bytes(damage(shard.read_bytes()))
    with pytest.raises(InputError, match=shard.name):
        PackedDataset(folder)
    shard.unlink()
    with pytest.raises(InputError, match=f"{shard.name} is missing"):
        PackedDataset(folder)


def test_a_row_that_does_not_exist_is_no_silent_wraparound(make_dataset, texts):
    folder, manifest = make_dataset(texts)
    for index in (-1, manifest.rows):
        with pytest.raises(AssertionError):
            PackedDataset(folder).rows(np.array([index]))
