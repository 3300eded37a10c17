from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from packing.config import SourceConfig
from packing.dataset import PackedDataset
from packing.prepare import finalize, pack_bucket, prepare, tokenize_unit
from packing.tokenizer import CorpusTokenizer


def pieces(folder: str, split: str = "train") -> list[tuple[int, ...]]:
    """The ids of every document of a dataset, in order."""
    dataset = PackedDataset(folder, split)
    rows = dataset.rows(np.arange(dataset.num_rows))
    found = []
    for ids, lengths in zip(rows.input_ids, rows.document_lengths, strict=True):
        for end, length in zip(np.cumsum(lengths), lengths, strict=True):
            found.append(tuple(ids[end - length : end].tolist()))
    return found


def encoded(tokenizer_folder: str, texts: list[str]) -> list[tuple[int, ...]]:
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    return [(*ids.tolist(), tokenizer.eos_id) for ids in tokenizer.encode_batch(texts)]


def test_best_fit_brings_every_document_back_whole(make_dataset, tokenizer_folder, texts):
    folder, _ = make_dataset(texts, seq_len=512, strategy="best_fit")
    assert Counter(pieces(folder)) == Counter(encoded(tokenizer_folder, texts))


def test_concat_keeps_every_token_and_exactly_one_end_per_document(make_dataset, tokenizer_folder, texts):
    texts = [*texts, "ends in a marker <|endoftext|>", "a <|endoftext|> b <|pad|> c"]
    folder, manifest = make_dataset(texts)
    tokens = [token for piece in pieces(folder) for token in piece]
    assert Counter(tokens) == Counter(token for doc in encoded(tokenizer_folder, texts) for token in doc)
    assert tokens.count(manifest.eos_id) == len(texts)
    assert all(manifest.eos_id not in piece[:-1] for piece in pieces(folder))


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_a_document_of_five_rows_has_one_end_and_loses_and_repeats_nothing(make_dataset, tokenizer_folder, strategy):
    long = " ".join(str(n) for n in range(50))
    [ids] = encoded(tokenizer_folder, [long])
    assert len(ids) > 4 * 32
    folder, _ = make_dataset([long], strategy=strategy)
    assert Counter(pieces(folder)) == Counter(ids[start : start + 32] for start in range(0, len(ids), 32))


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_a_repeated_source_comes_as_often_as_asked(make_plan, write_jsonl, tokenizer_folder, strategy):
    sources = [
        SourceConfig(name="once", uri=write_jsonl(["only one"], "once.jsonl")),
        SourceConfig(name="thrice", uri=write_jsonl(["three times", "so it is"], "thrice.jsonl"), repeat=3),
    ]
    plan = make_plan(sources=sources, seq_len=1024, strategy=strategy)
    manifest = prepare(plan)
    expected = encoded(tokenizer_folder, ["only one"] + ["three times", "so it is"] * 3)
    assert Counter(pieces(plan.dataset)) == Counter(expected)
    assert manifest.conservation.tokens_in == sum(map(len, expected))


def test_the_order_is_shuffled_by_the_seed(make_plan, write_jsonl, tokenizer_folder, texts):
    path = write_jsonl(texts)
    orders = []
    for seed in (0, 1):
        plan = make_plan(path, seed=seed, buckets=1, seq_len=512, strategy="best_fit")
        prepare(plan)
        orders.append(pieces(plan.dataset))
    assert orders[0] != orders[1]
    assert Counter(orders[0]) == Counter(orders[1]) == Counter(encoded(tokenizer_folder, texts))


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_documents_of_one_row_are_not_in_the_order_of_the_input(make_dataset, tokenizer_folder, strategy):
    texts = [f"document {n}" for n in range(20)]
    folder, manifest = make_dataset(texts, seq_len=1024, buckets=1, strategy=strategy)
    assert manifest.rows == 1
    assert pieces(folder) != encoded(tokenizer_folder, texts)


@pytest.mark.parametrize(("strategy", "left"), [("concat", 31), ("best_fit", 15)])
def test_a_bucket_leaves_less_than_a_row_to_the_end(make_plan, write_jsonl, texts, strategy, left):
    plan = make_plan(write_jsonl(texts), strategy=strategy)
    tokenize_unit(plan, 0)
    for bucket in range(plan.num_buckets):
        report = pack_bucket(plan, bucket)
        assert report.remainder_tokens <= left
        assert report.tokens == report.remainder_tokens + sum(shard.effective_tokens for shard in report.shards)


def test_best_fit_rows_are_not_sorted_by_document_length(make_dataset, texts):
    folder, _ = make_dataset(texts, seq_len=256, strategy="best_fit", buckets=1)
    dataset = PackedDataset(folder)
    longest = [lengths.max() for lengths in dataset.rows(np.arange(dataset.num_rows)).document_lengths]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)


def test_a_finished_bucket_is_recognised_and_exactly_what_is_damaged_is_redone(make_plan, write_jsonl, texts):
    plan = make_plan(write_jsonl(texts), rows_per_shard=20)
    tokenize_unit(plan, 0)
    reports = [pack_bucket(plan, bucket) for bucket in range(2)]
    shards = [Path(plan.dataset, report.shards[0].file) for report in reports]
    raw, written = [s.read_bytes() for s in shards], [s.stat().st_mtime_ns for s in shards]
    shards[1].write_bytes(raw[1][:200] + bytes([raw[1][200] ^ 1]) + raw[1][201:])
    assert [pack_bucket(plan, bucket) for bucket in range(2)] == reports
    assert [s.read_bytes() for s in shards] == raw
    assert shards[0].stat().st_mtime_ns == written[0]
    finalize(plan)


def test_buckets_without_documents_are_no_problem(make_dataset):
    _, manifest = make_dataset(["just one"], buckets=7)
    assert manifest.rows == 1
