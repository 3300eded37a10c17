import gzip
from pathlib import Path

import fsspec
import pytest

from infra.errors import InputError
from packing import plan as plan_module
from packing.config import SourceConfig
from packing.prepare import PreparationPlan, prepare


@pytest.fixture
def tree(tmp_path):
    for name in ["tree/a.txt", "tree/deep/b.txt", "tree/deep/c.md", "tree/.git/config.txt", "tree/.hidden.txt"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path / "tree"


def names(plan):
    return [file.name for unit in plan.units for file in unit.files]


def test_a_plan_travels_as_json(make_plan, write_jsonl):
    plan = make_plan(write_jsonl(["a"]))
    assert PreparationPlan.model_validate_json(plan.model_dump_json()) == plan


def test_the_dataset_folder_is_named_by_the_dataset_id(make_plan, write_jsonl, tmp_path):
    plan = make_plan(write_jsonl(["a"]))
    assert plan.dataset == f"{tmp_path}/datasets/{plan.dataset_id[:16]}"
    assert plan.work == f"{tmp_path}/datasets/.work-{plan.dataset_id[:16]}"


def test_folders_and_globs_find_files_in_a_fixed_order_and_leave_hidden_ones_out(make_plan, tree):
    assert names(make_plan(str(tree))) == ["a.txt", "deep/b.txt", "deep/c.md"]
    assert names(make_plan(f"{tree}/**/*.txt")) == ["a.txt", "deep/b.txt"]
    assert names(make_plan(f"file://{tree}/deep/*")) == ["b.txt", "c.md"]
    assert names(make_plan(f"{tree}/.hidden.txt")) == [".hidden.txt"]


def test_a_file_found_twice_is_read_once(make_plan, tree):
    assert names(make_plan([f"{tree}/deep/c.md", str(tree)])) == ["c.md", "a.txt", "deep/b.txt"]


@pytest.mark.parametrize("pattern", ["deep/*", "*.md", "*/deep/c.md"])
def test_exclude_matches_path_name_and_path_below_the_source(make_plan, tree, pattern):
    source = SourceConfig(name="docs", uri=str(tree), exclude=[pattern])
    assert "deep/c.md" not in names(make_plan(sources=[source]))
    assert "a.txt" in names(make_plan(sources=[source]))


def test_files_on_other_file_systems_are_read(make_plan):
    fsspec.filesystem("memory").pipe("/packing-test/a.jsonl", b'{"text": "from memory"}\n')
    assert prepare(make_plan("memory://packing-test/*.jsonl")).sources[0].documents == 1


def test_relative_paths_mean_the_folder_the_plan_was_made_in(make_plan, tree, monkeypatch):
    monkeypatch.chdir(tree)
    assert make_plan("deep/*.txt").units[0].files[0].url == f"{tree}/deep/b.txt"


def test_a_uri_without_files_is_named(make_plan, tree):
    with pytest.raises(InputError, match=r"data\.sources\[docs\]\.uri: .*nothing\*\.txt matches no file"):
        make_plan([str(tree), f"{tree}/nothing*.txt"])


def test_excluding_everything_is_an_error(make_plan, tree):
    with pytest.raises(InputError, match="exclude leaves no file"):
        make_plan(sources=[SourceConfig(name="docs", uri=str(tree), exclude=["*"])])


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl.zst", "x.zip"])
def test_formats_that_are_not_read_are_refused_instead_of_taken_for_text(make_plan, tmp_path, name):
    (tmp_path / name).write_bytes(b"PAR1")
    with pytest.raises(InputError, match=f"cannot read .*{name}"):
        make_plan(str(tmp_path / name))


def test_datasets_are_refused_on_object_stores(make_plan, write_jsonl, tokenizer_folder):
    plan = make_plan(write_jsonl(["a"]))
    with pytest.raises(InputError, match="local folders"):
        plan_module.plan_preparation(plan.data, plan.packing, tokenizer_folder, "s3://bucket/x")


def test_the_extension_decides_the_format_unless_it_is_set(make_plan, tmp_path):
    for name in ["a.jsonl", "b.JSON", "c.ndjson", "d.txt", "e"]:
        (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text("x")
    (tmp_path / "in" / "f.json.gz").write_bytes(gzip.compress(b"x"))
    files = make_plan(f"{tmp_path}/in/*").units[0].files
    assert [f.format for f in files] == ["jsonl"] * 3 + ["text"] * 2 + ["jsonl"]
    assert [f.gzipped for f in files] == [False] * 5 + [True]
    forced = make_plan(sources=[SourceConfig(name="s", uri=f"{tmp_path}/in/*", format="text")])
    assert {f.format for f in forced.units[0].files} == {"text"}


def test_units_hold_whole_files_of_one_source(make_plan, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_module, "_UNIT_BYTES", 10)
    for name, size in [("a", 4), ("b", 6), ("c", 1), ("d", 50), ("e", 2)]:
        (tmp_path / f"{name}.txt").write_text("x" * size)
    sources = [SourceConfig(name=s, uri=f"{tmp_path}/{p}.txt") for s, p in [("one", "*"), ("two", "a")]]
    units = make_plan(sources=sources).units
    assert [[f.name[0] for f in unit.files] for unit in units] == [["a", "b"], ["c"], ["d"], ["e"], ["a"]]
    assert [unit.source for unit in units] == [0, 0, 0, 0, 1]


def test_every_setting_that_shapes_the_dataset_gives_another_folder(make_plan, write_jsonl, word_tokenizer):
    uri = write_jsonl(["one", "two"])
    same = make_plan(uri)
    spelled_out = SourceConfig(name="docs", uri=[uri], repeat=1, role="domain", format="auto")
    assert make_plan(sources=[spelled_out]).dataset == same.dataset
    others = [
        make_plan(uri, seq_len=64),
        make_plan(uri, strategy="best_fit"),
        make_plan(uri, seed=1),
        make_plan(uri, held_out_fraction=0.1),
        make_plan(uri, held_out_max_tokens=5),
        make_plan(uri, tokenizer=word_tokenizer(10)),
        make_plan(write_jsonl(["one", "two!"], "other.jsonl")),
        *(
            make_plan(sources=[SourceConfig(uri=uri, **({"name": "docs"} | change))])
            for change in ({"name": "x"}, {"repeat": 2}, {"text_field": "t"}, {"format": "text"}, {"role": "general"})
        ),
    ]
    assert len({plan.dataset for plan in [same, *others]}) == 1 + len(others)


def test_moving_the_source_keeps_the_dataset(make_plan, tree, tmp_path):
    before = make_plan(str(tree))
    moved = Path(tree).rename(tmp_path / "elsewhere")
    assert make_plan(f"{moved}/**").dataset_id == before.dataset_id
