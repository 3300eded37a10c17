import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra import storage
from packing import plan as plan_module
from packing.config import DataConfig, PackingConfig, SourceConfig
from packing.dataset import PackedDataset
from packing.prepare import (
    PreparationPlan,
    finalize,
    pack_bucket,
    plan_preparation,
    prepare,
    tokenize_unit,
    verify_dataset,
)
from packing.tokenizer import CorpusTokenizer

# Prepares, and dies without warning at one of the moments when a file is written.
KILLED = """
import contextlib, os, signal, sys
from infra import storage
from packing.prepare import PreparationPlan, prepare

kill_at, moment, written, write_atomic = int(sys.argv[1]), sys.argv[2], 0, storage.write_atomic

@contextlib.contextmanager
def deadly(url):
    global written
    written += 1
    die = lambda now: written == kill_at and moment == now and os.kill(os.getpid(), signal.SIGKILL)
    die("before")
    with write_atomic(url) as file:
        yield file
        file.flush()
        die("during")
    die("after")

storage.write_atomic = deadly
prepare(PreparationPlan.model_validate_json(sys.stdin.read()))
"""


def content(folder: str) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


@pytest.fixture
def plan_in(
    make_plan: Callable[..., PreparationPlan],
    write_jsonl: Callable[..., str],
    texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], PreparationPlan]:
    """The same preparation of several units, buckets and shards in any root."""
    monkeypatch.setattr(plan_module, "_UNIT_BYTES", 4000)
    sources = [
        SourceConfig(
            name=f"source-{n}",
            uri=[write_jsonl(texts[n::6], f"{n}.jsonl"), write_jsonl(texts[n + 2 :: 6], f"{n}b.jsonl")],
        )
        for n in range(2)
    ]
    return lambda root: make_plan(
        sources=sources, root=root, held_out_fraction=0.1, rows_per_shard=40, strategy="best_fit", seq_len=64
    )


def test_the_same_input_gives_the_same_bytes_in_any_root_and_order(plan_in):
    one, other = plan_in("one"), plan_in("other")
    manifest = prepare(one)
    assert one.num_units > 2
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda unit: tokenize_unit(other, unit), reversed(range(other.num_units))))
        list(pool.map(lambda bucket: pack_bucket(other, bucket), reversed(range(other.num_buckets))))
    assert finalize(other) == manifest
    assert content(other.dataset) == content(one.dataset)


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_preparation_killed_anywhere_ends_with_the_same_bytes(plan_in, moment, monkeypatch):
    writes = []
    write_atomic = storage.write_atomic
    with monkeypatch.context() as patch:
        patch.setattr(storage, "write_atomic", lambda url: writes.append(url) or write_atomic(url))
        undisturbed = plan_in("undisturbed")
        prepare(undisturbed)
    plan = plan_in("killed")
    # Once in the run, and once more in its rerun; the last write is the manifest, after which only cleaning is left.
    kills = [len(writes) if moment == "after" else random.randrange(1, len(writes) + 1), 2]
    for number, kill_at in enumerate(kills):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(kill_at), moment],
            input=plan.model_dump_json(),
            text=True,
            capture_output=True,
            cwd=Path(plan_module.__file__).parents[1],
        )
        allowed = {-signal.SIGKILL, 0} if number else {-signal.SIGKILL}
        assert killed.returncode in allowed, (kills, killed.stderr)
    prepare(plan)
    assert content(plan.dataset) == content(undisturbed.dataset), kills
    assert verify_dataset(plan.dataset) == []
    assert not Path(plan.work).exists()


def test_a_rerun_redoes_only_what_is_missing(plan_in):
    plan = plan_in("root")
    for unit in range(plan.num_units):
        tokenize_unit(plan, unit)
    pack_bucket(plan, 0)
    before = {p: p.stat().st_mtime_ns for root in (plan.work, plan.dataset) for p in Path(root).iterdir()}
    [missing] = [p for p in before if p.name == "UnitReport-00001.json"]
    missing.unlink()
    for unit in range(plan.num_units):
        tokenize_unit(plan, unit)
    pack_bucket(plan, 0)
    assert {p.name for p in before if p.stat().st_mtime_ns != before[p]} == {missing.name, "unit-00001.arrow"}


def test_every_step_still_answers_when_the_dataset_is_finished(plan_in):
    plan = plan_in("root")
    units = [tokenize_unit(plan, unit) for unit in range(plan.num_units)]
    buckets = [pack_bucket(plan, bucket) for bucket in range(plan.num_buckets)]
    manifest, files = finalize(plan), content(plan.dataset)
    assert [tokenize_unit(plan, unit) for unit in range(plan.num_units)] == units
    assert [pack_bucket(plan, bucket) for bucket in range(plan.num_buckets)] == buckets
    assert not Path(plan.work).exists()
    assert finalize(plan) == prepare(plan) == manifest
    assert content(plan.dataset) == files


def test_a_changed_setting_never_mixes_with_what_was_begun(make_plan, write_jsonl, texts):
    path = write_jsonl(texts)
    begun = make_plan(path, seq_len=128)
    tokenize_unit(begun, 0)
    pack_bucket(begun, 0)
    changed = make_plan(path, seq_len=256)
    prepare(changed)
    fresh = make_plan(path, seq_len=256, root="fresh")
    prepare(fresh)
    assert content(changed.dataset) == content(fresh.dataset)
    assert {begun.dataset, begun.work}.isdisjoint({changed.dataset, changed.work})


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@settings(deadline=None, max_examples=15)
@given(
    texts=st.lists(TEXT, min_size=1, max_size=12),
    seq_len=st.integers(8, 40),
    strategy=st.sampled_from(["concat", "best_fit"]),
    buckets=st.integers(1, 3),
    rows_per_shard=st.integers(1, 5),
    repeat=st.integers(1, 2),
)
def test_any_corpus_comes_back_token_for_token(tokenizer_folder, texts, repeat, **packing):
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    kept = [text for text in texts if text.strip()] or ["something"]
    folder = Path(tempfile.mkdtemp())
    try:
        for number, text in enumerate([*texts, *kept[-1:]]):
            (folder / f"{number}.txt").write_bytes(text.encode())
        source = SourceConfig(name="s", uri=f"{folder}/*.txt", repeat=repeat)
        data = DataConfig(sources=[source], held_out_fraction=0)
        plan = plan_preparation(data, PackingConfig(**packing), tokenizer_folder, str(folder / "out"))
        manifest = prepare(plan)
        read = [text.encode().removeprefix(b"\xef\xbb\xbf").decode() for text in [*texts, *kept[-1:]]]
        used = [text for text in read if text.strip()]
        expected = np.concatenate([np.append(ids, tokenizer.eos_id) for ids in tokenizer.encode_batch(used)] * repeat)
        dataset = PackedDataset(plan.dataset)
        rows = dataset.rows(np.arange(dataset.num_rows))
        inside = np.arange(dataset.seq_len) < np.array([n.sum() for n in rows.document_lengths])[:, None]
        assert np.array_equal(np.sort(rows.input_ids[inside]), np.sort(expected))
        assert (rows.input_ids[~inside] == manifest.pad_id).all()
        assert manifest.sources[0].empty == len(read) - len(used)
    finally:
        shutil.rmtree(folder)
