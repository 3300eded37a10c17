import json
from pathlib import Path

import pytest

from infra.errors import InputError, StayerError
from packing.manifest import Conservation, load_manifest, verify_dataset


def test_a_manifest_is_read_back_as_it_was_written(make_dataset, texts):
    folder, manifest = make_dataset(texts, held_out_fraction=0.1)
    assert load_manifest(folder) == manifest
    assert verify_dataset(folder) == []


def test_exactly_the_damaged_shards_are_named(make_dataset, texts):
    folder, manifest = make_dataset(texts, held_out_fraction=0.1)
    cut, flipped, empty, gone = (Path(folder, shard.file) for shard in manifest.shards[:4])
    raw = flipped.read_bytes()
    cut.write_bytes(cut.read_bytes()[:-10])
    flipped.write_bytes(raw[:300] + bytes([raw[300] ^ 1]) + raw[301:])
    empty.write_bytes(b"")
    gone.unlink()
    held_out = Path(folder, manifest.held_out["docs"][0].file)
    held_out.write_bytes(held_out.read_bytes() + b"x")
    problems = verify_dataset(folder)
    named = [str(Path(p).relative_to(folder)) for p in (cut, flipped, empty, gone, held_out)]
    assert [problem.split()[0] for problem in problems] == named


def test_a_folder_without_manifest_is_no_dataset(tmp_path):
    with pytest.raises(InputError, match="not a packed dataset"):
        load_manifest(str(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [({"rows": 1}, "altered"), ({"format_version": 99}, "format version 99, this program reads 1")],
)
def test_an_altered_manifest_is_refused(make_dataset, texts, change, message):
    folder, _ = make_dataset(texts)
    file = Path(folder, "manifest.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=message):
        load_manifest(folder)


def test_sources_keep_licence_role_and_counts(make_dataset, texts):
    _, manifest = make_dataset([*texts, ""], held_out_fraction=0.1)
    [source] = manifest.sources
    assert (source.name, source.role, source.licence, source.personal_data) == ("docs", "domain", "unknown", False)
    assert (source.files, source.documents, source.empty) == (1, 200, 1)
    assert source.held_out_tokens == sum(shard.effective_tokens for shard in manifest.held_out["docs"])


def test_no_manifest_mentions_where_the_input_lies(make_dataset, tmp_path):
    folder, _ = make_dataset(["a", "", "b \ud800"])
    assert str(tmp_path) not in Path(folder, "manifest.json").read_text()


def test_lost_or_doubled_tokens_fail_the_check():
    Conservation(tokens_in=10, effective_out=6, held_out=3, dropped={"held_out_limit": 1}).check()
    for effective_out in (5, 7):
        with pytest.raises(StayerError, match="does not conserve"):
            Conservation(tokens_in=10, effective_out=effective_out, held_out=3, dropped={"x": 1}).check()
