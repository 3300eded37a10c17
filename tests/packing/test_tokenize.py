from pathlib import Path

import numpy as np
import pytest

from infra.errors import InputError, StayerError
from packing import tokenize as tokenize_module
from packing.config import SourceConfig
from packing.prepare import finalize, pack_bucket, prepare, tokenize_unit
from packing.tokenize import HELD_OUT, bucket_of, document_id


def test_duplicates_share_a_bucket_and_a_side_of_the_split():
    assert document_id("text", 0) == document_id("text", 0)
    assert document_id("text", 0) != document_id("text", 1)
    assert len(document_id("text", 2**100)) == 16


def test_a_smaller_fraction_holds_out_a_subset_whatever_the_buckets():
    ids = [document_id(str(n), 7) for n in range(2000)]

    def held(fraction, num_buckets):
        return {i for i in ids if bucket_of(i, held_out_fraction=fraction, num_buckets=num_buckets) == HELD_OUT}

    assert held(0.0, 4) == set()
    assert held(0.05, 4) < held(0.2, 9)
    assert len(held(0.2, 9)) == pytest.approx(400, abs=4 * 18)  # binomial, 4 standard deviations


def test_buckets_are_about_equally_large():
    buckets = [bucket_of(document_id(str(n), 0), held_out_fraction=0.1, num_buckets=4) for n in range(4000)]
    assert np.bincount(np.array(buckets)[np.array(buckets) >= 0]) == pytest.approx([900] * 4, abs=120)


def test_counts_reconcile_and_findings_name_file_and_line(make_plan, write_jsonl):
    path = write_jsonl(["", "good one", "bad \ud83d one", " ", "last"])
    report = tokenize_unit(make_plan(path), 0)
    assert (report.documents, report.empty, report.repaired) == (3, 2, 1)
    assert report.characters == len("good one" + "bad x one" + "last")
    assert sum(batch.documents for batch in report.batches) == 3
    assert sum(batch.tokens for batch in report.batches) == report.tokens
    found = {(f.file, f.what): (f.count, f.lines) for f in report.findings}
    assert found == {("docs.jsonl", "empty"): (2, [1, 4]), ("docs.jsonl", "lone surrogate"): (1, [3])}


def test_small_batches_and_flushes_change_nothing_in_the_dataset(make_plan, write_jsonl, texts, monkeypatch):
    path = write_jsonl(texts)
    whole = prepare(make_plan(path, root="a", held_out_fraction=0.1))
    monkeypatch.setattr(tokenize_module, "_BATCH_DOCUMENTS", 3)
    monkeypatch.setattr(tokenize_module, "_FLUSH_TOKENS", 50)
    assert prepare(make_plan(path, root="b", held_out_fraction=0.1)) == whole


def test_a_finished_unit_is_recognised_and_a_damaged_one_redone(make_plan, write_jsonl, tmp_path):
    plan = make_plan(write_jsonl(["one", "two"]))
    report = tokenize_unit(plan, 0)
    [file] = (tmp_path / "datasets").glob(".work-*/*.arrow")
    raw, written = file.read_bytes(), file.stat().st_mtime_ns
    assert tokenize_unit(plan, 0) == report
    assert file.stat().st_mtime_ns == written
    for damaged in (raw[:-10], b"", raw[:80] + bytes([raw[80] ^ 1]) + raw[81:]):
        file.write_bytes(damaged)
        assert tokenize_unit(plan, 0) == report
        assert file.read_bytes() == raw


def test_a_source_that_is_only_evaluated_is_not_tokenized_beyond_its_held_out_part(make_plan, write_jsonl, texts):
    sources = [
        SourceConfig(name="used", uri=write_jsonl(texts[:100], "used.jsonl")),
        SourceConfig(name="general", uri=write_jsonl(texts[100:], "general.jsonl"), repeat=0, role="general"),
    ]
    manifest = prepare(make_plan(sources=sources, held_out_fraction=0.2))
    general = manifest.sources[1]
    assert general.unused_documents + general.held_out_documents == general.documents == 100
    assert general.tokens == general.held_out_tokens > 0
    assert sum(shard.effective_tokens for shard in manifest.held_out["general"]) == general.tokens


def test_a_file_that_changed_after_planning_is_refused(make_plan, write_jsonl):
    plan = make_plan(write_jsonl(["one"]))
    write_jsonl(["other"])
    with pytest.raises(InputError, match="changed while it was prepared"):
        tokenize_unit(plan, 0)


def test_a_tokenizer_that_changed_after_planning_is_refused(make_plan, write_jsonl, word_tokenizer):
    plan = make_plan(write_jsonl(["one"])).model_copy(update={"tokenizer_folder": word_tokenizer(5)})
    with pytest.raises(InputError, match=r"tokenizer in .* changed"):
        tokenize_unit(plan, 0)


def test_a_marker_that_cannot_be_written_as_text_names_the_lines(make_plan, write_jsonl, word_tokenizer):
    plan = make_plan(write_jsonl(["w1", "w1 </s> w2"]), tokenizer=word_tokenizer(5, marker_is_word=True))
    with pytest.raises(InputError, match=r"docs\.jsonl, line 1 and .*docs\.jsonl, line 2: .*spells the control token"):
        tokenize_unit(plan, 0)


def test_a_damaged_archive_leaves_nothing_that_looks_done(make_plan, write_jsonl, tmp_path):
    good = write_jsonl([f"good {n}" for n in range(10)], "good.jsonl")
    cut = write_jsonl([f"document {n} {n * n}" for n in range(5000)], "cut.jsonl.gz")
    with Path(cut).open("r+b") as file:
        file.truncate(file.seek(0, 2) - 200)
    plan = make_plan([good, cut])
    with pytest.raises(InputError, match=r"cut\.jsonl\.gz: damaged gzip"):
        prepare(plan)
    assert not [path for path in (tmp_path / "datasets").rglob("*") if path.is_file()]
    for step in (lambda: pack_bucket(plan, 0), lambda: finalize(plan)):
        with pytest.raises(StayerError, match="is not done"):
            step()
