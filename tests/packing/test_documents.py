import gzip
from pathlib import Path

import pytest

from infra import storage
from infra.errors import InputError
from packing.config import SourceConfig
from packing.documents import Document, InputFile, Rejected, read_documents


def read(path: str | Path, **source) -> list[Document | Rejected]:
    path = str(path)
    kind = "jsonl" if ".jsonl" in path else "text"
    sha256 = storage.sha256_file(path)
    file = InputFile(
        url=path,
        name="f",
        size_bytes=Path(path).stat().st_size,
        sha256=sha256,
        format=kind,
        gzipped=path.endswith(".gz"),
    )
    return list(read_documents(file, SourceConfig(name="s", uri=path, **source)))


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz"])
def test_each_line_is_a_document(write_jsonl, name):
    assert read(write_jsonl(["one", "two\nlines"], name)) == [Document("one", 1), Document("two\nlines", 2)]


@pytest.mark.parametrize("name", ["d.txt", "d.py.gz"])
def test_a_text_file_is_one_document_with_its_line_ends(tmp_path, name):
    raw = b"\xef\xbb\xbffirst\r\nsecond\n"
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    assert read(tmp_path / name) == [Document("first\r\nsecond\n", 1)]


def test_documents_without_text_are_rejected_and_the_rest_is_kept(write_jsonl):
    found = read(write_jsonl(["", "good", " \n\t"]))
    assert found == [Rejected(1, "empty"), Document("good", 2), Rejected(3, "empty")]


def test_blank_lines_count_as_lines_but_not_as_documents(tmp_path):
    (tmp_path / "d.jsonl").write_text('\n{"text": "a"}\r\n\n{"text": "b"}')
    assert read(tmp_path / "d.jsonl") == [Document("a", 2), Document("b", 4)]


def test_unicode_line_separators_do_not_end_a_line(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"text": "a\u2028b\u0085c"}\n')
    assert read(tmp_path / "d.jsonl") == [Document("a\u2028b\u0085c", 1)]


def test_a_lone_surrogate_is_replaced_and_a_pair_is_one_character(tmp_path):
    lines = [r'{"text": "one"}', r'{"text": "x\ud83dy"}', r'{"text": "\ud83d\udc4d"}', r'{"text": "four"}']
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    expected = [
        Document("one", 1),
        Document("x\ufffdy", 2, ("lone surrogate",)),
        Document("👍", 3),
        Document("four", 4),
    ]
    assert read(tmp_path / "d.jsonl") == expected


@pytest.mark.parametrize(("name", "raw"), [("d.txt", b"caf\xe9"), ("d.jsonl", b'{"text": "caf\xe9"}\n')])
def test_bytes_that_are_no_utf8_are_replaced_and_told(tmp_path, name, raw):
    (tmp_path / name).write_bytes(raw)
    assert read(tmp_path / name) == [Document("caf\ufffd", 1, ("invalid UTF-8",))]


def test_fields_nobody_trains_on_may_be_anything(write_jsonl):
    metas = [1, "two", [3], {"four": None}, 10**5000]
    records = [{"text": f"t{n}", "meta": meta} for n, meta in enumerate(metas[:4])]
    path = write_jsonl([*records, {"text": "t4"}])
    with Path(path).open("a") as file:
        file.write('{"text": "t5", "meta": ' + "9" * 5000 + "}\n")
    assert [d.text for d in read(path)] == [f"t{n}" for n in range(6)]


def test_text_may_lie_deeper_or_under_a_key_with_a_dot(write_jsonl):
    path = write_jsonl([{"meta": {"text": "deep"}}, {"meta.text": "flat", "meta": 1}])
    assert [d.text for d in read(path, text_field="meta.text")] == ["deep", "flat"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"content": "x", "id": 1}', "no field 'text'.*the record has content, id"),
        ('{"text": 5}', "holds a number, only a string"),
        ('{"text": null}', "holds null"),
        ('["text"]', "found an array"),
        ('{"text": "x"', r"not JSON \(.*column 13\)"),
        ("[" * 200_000, "not JSON|too deeply"),
    ],
)
def test_a_record_that_cannot_be_right_stops_with_file_and_line(tmp_path, line, message):
    (tmp_path / "d.jsonl").write_text('{"text": "good"}\n' + line + "\n")
    with pytest.raises(InputError, match=rf"(?s)d\.jsonl, line 2: .*({message})"):
        read(tmp_path / "d.jsonl")


def test_the_nearest_field_is_suggested(write_jsonl):
    with pytest.raises(InputError) as caught:
        read(write_jsonl([{"texts": "x"}]))
    assert caught.value.hint == "did you mean text_field: texts?"


@pytest.mark.parametrize("damage", [lambda raw: raw[:-200], lambda raw: raw + b"junk", lambda raw: b"plain text"])
def test_a_damaged_gzip_file_is_named(write_jsonl, damage):
    path = Path(write_jsonl([f"document {n} {n * n}" for n in range(5000)], "d.jsonl.gz"))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=r"d\.jsonl\.gz: damaged gzip"):
        read(path)


def test_a_file_that_changed_since_it_was_planned_is_refused(write_jsonl):
    path = write_jsonl(["one"])
    planned = InputFile(url=path, name="f", size_bytes=1, sha256="0" * 64, format="jsonl", gzipped=False)
    with pytest.raises(InputError, match="changed while it was prepared"):
        list(read_documents(planned, SourceConfig(name="s", uri=path)))
