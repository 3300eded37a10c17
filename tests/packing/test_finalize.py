from pathlib import Path

import numpy as np
import pytest

from infra.errors import InputError, StayerError
from packing import finalize as finalize_module
from packing import plan as plan_module
from packing.config import SourceConfig
from packing.dataset import PackedDataset
from packing.prepare import finalize, finished, pack_bucket, prepare, tokenize_unit


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_tokens_in_equal_tokens_out_plus_held_out_plus_dropped(make_dataset, texts, strategy):
    folder, manifest = make_dataset(texts, strategy=strategy, held_out_fraction=0.3, held_out_max_tokens=100)
    kept = manifest.conservation
    assert kept.tokens_in == sum(source.tokens for source in manifest.sources)
    assert kept.tokens_in == kept.effective_out + kept.held_out + sum(kept.dropped.values())
    assert kept.held_out == 100
    assert set(kept.dropped) == {"held_out_limit"}
    dataset = PackedDataset(folder)
    assert dataset.effective_tokens(np.arange(dataset.num_rows)) == kept.effective_out == manifest.effective_tokens


def test_tokens_that_went_missing_stop_the_preparation(make_plan, write_jsonl, texts, monkeypatch):
    plan = make_plan(write_jsonl(texts))
    monkeypatch.setattr(finalize_module, "_write_last_shards", lambda *_: [])
    with pytest.raises(StayerError, match="does not conserve tokens"):
        prepare(plan)
    assert finished(plan) is None


def test_padding_stands_in_the_last_row_only(make_dataset, texts):
    folder, manifest = make_dataset(texts)
    dataset = PackedDataset(folder)
    effective = [dataset.effective_tokens(np.array([row])) for row in range(dataset.num_rows)]
    assert all(tokens == 32 for tokens in effective[:-1])
    assert manifest.rows == -(-manifest.effective_tokens // 32)


def test_held_out_documents_are_the_same_in_every_job_with_the_source(make_plan, write_jsonl, texts):
    shared = SourceConfig(name="shared", uri=write_jsonl(texts, "shared.jsonl"))
    other = SourceConfig(name="other", uri=write_jsonl([text + "!" for text in texts], "other.jsonl"))
    jobs = []
    for sources, settings in [([shared], {}), ([other, shared], {"buckets": 5, "strategy": "best_fit"})]:
        plan = make_plan(sources=sources, held_out_fraction=0.2, held_out_max_tokens=300, **settings)
        prepare(plan)
        dataset = PackedDataset(plan.dataset, "held-out/shared")
        jobs.append(dataset.rows(np.arange(dataset.num_rows)).input_ids.tolist())
    assert jobs[0] == jobs[1]


def test_the_held_out_limit_keeps_the_same_documents_however_the_input_is_cut(
    make_plan, write_jsonl, texts, monkeypatch
):
    monkeypatch.setattr(plan_module, "_UNIT_BYTES", 1)
    kept = []
    for parts in (1, 5):
        uris = [write_jsonl(texts[n::parts], f"{parts}/{n}.jsonl") for n in range(parts)]
        plan = make_plan(uris, held_out_fraction=0.4, held_out_max_tokens=333)
        assert plan.num_units == parts
        assert prepare(plan).conservation.held_out == 333
        dataset = PackedDataset(plan.dataset, "held-out/docs")
        kept.append(dataset.rows(np.arange(dataset.num_rows)).input_ids.tolist())
    assert kept[0] == kept[1]


def test_held_out_documents_are_never_trained_on(make_plan, write_jsonl, texts, word_tokenizer):
    # Every document is one word of its own, twice in the source.
    plan = make_plan(
        write_jsonl([f"w{n}" for n in range(400)] * 2), tokenizer=word_tokenizer(400), held_out_fraction=0.25
    )
    prepare(plan)
    seen = {}
    for split in ("train", "held-out/docs"):
        dataset = PackedDataset(plan.dataset, split)
        rows = dataset.rows(np.arange(dataset.num_rows))
        used = np.arange(dataset.seq_len) < np.array([n.sum() for n in rows.document_lengths])[:, None]
        seen[split] = set(rows.input_ids[used].tolist()) - {400}
    assert not seen["train"] & seen["held-out/docs"]
    assert len(seen["train"] | seen["held-out/docs"]) == 400


def test_a_source_from_which_nothing_was_held_out_is_not_listed(make_dataset, texts):
    _, manifest = make_dataset(texts, held_out_fraction=0.0)
    assert manifest.held_out == {}


@pytest.mark.parametrize("texts", [[""], ["", " ", "\n"]])
def test_an_input_of_empty_documents_ends_with_a_clear_error(make_plan, write_jsonl, texts):
    plan = make_plan(write_jsonl(texts))
    with pytest.raises(InputError, match=rf"no document of docs holds text \({len(texts)} are empty\)"):
        prepare(plan)
    assert finished(plan) is None


def test_a_dataset_without_training_rows_is_never_written(make_plan, write_jsonl, texts):
    plan = make_plan(sources=[SourceConfig(name="s", uri=write_jsonl(texts), repeat=0)], held_out_fraction=0.1)
    with pytest.raises(InputError, match="nothing to train on: 200 documents hold text"):
        prepare(plan)


def test_one_short_document_makes_one_padded_row(make_dataset):
    _, manifest = make_dataset(["hi"], seq_len=64)
    assert manifest.rows == 1
    assert manifest.effective_tokens < 64


def test_a_manifest_is_not_written_over_missing_work(make_plan, write_jsonl, texts):
    plan = make_plan(write_jsonl(texts))
    tokenize_unit(plan, 0)
    pack_bucket(plan, 0)
    with pytest.raises(StayerError, match="BucketReport-00001"):
        finalize(plan)
    report = pack_bucket(plan, 1)
    Path(plan.dataset, report.shards[0].file).unlink()
    with pytest.raises(StayerError, match="is missing"):
        finalize(plan)
    assert finished(plan) is None


def test_finishing_leaves_only_the_dataset(make_plan, write_jsonl, texts):
    plan = make_plan(write_jsonl(texts), held_out_fraction=0.2)
    Path(plan.dataset).mkdir(parents=True)
    Path(plan.dataset, ".shards-0000-00000.arrow.1-ab.tmp").write_bytes(b"torn")
    manifest = prepare(plan)
    files = {str(p.relative_to(plan.dataset)) for p in Path(plan.dataset).rglob("*") if p.is_file()}
    listed = {shard.file for shard in [*manifest.shards, *manifest.held_out["docs"]]}
    assert files == listed | {"manifest.json", "reports.json"}
    assert [p.name for p in Path(plan.root).iterdir()] == [plan.dataset_id[:16]]


def test_a_finished_dataset_that_lost_bytes_is_refused_by_name(make_plan, write_jsonl, texts):
    plan = make_plan(write_jsonl(texts))
    shard = Path(plan.dataset, prepare(plan).shards[0].file)
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(InputError, match=rf"is damaged: {shard.name} has"):
        prepare(plan)
