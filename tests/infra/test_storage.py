import json
import signal
import uuid

import fsspec
import pytest

from infra import storage
from infra.errors import InputError


@pytest.fixture(params=["file", "memory"])
def folder(request, tmp_path):
    return str(tmp_path) if request.param == "file" else f"memory://{uuid.uuid4().hex}"


def test_what_was_written_is_read_and_listed_at_once(folder):
    assert storage.glob_files(folder) == []
    storage.write_json(storage.join(folder, "sub", "a.json"), {"text": "é", "list": [1]})
    assert storage.read_json(storage.join(folder, "sub", "a.json")) == {"text": "é", "list": [1]}
    (found,) = storage.glob_files(folder)
    assert found.url == storage.join(folder, "sub", "a.json")
    with storage.open_read(found.url) as file:
        assert len(file.read()) == found.size_bytes


def test_a_write_that_fails_in_the_middle_leaves_nothing_new(folder):
    url = storage.join(folder, "a.txt")
    with pytest.raises(RuntimeError, match="disk on fire"), storage.write_atomic(url) as file:
        file.write(b"half")
        raise RuntimeError("disk on fire")
    assert storage.glob_files(folder) == []

    storage.write_text(url, "whole")
    with pytest.raises(RuntimeError, match="disk on fire"), storage.write_atomic(url) as file:
        file.write(b"half")
        raise RuntimeError("disk on fire")
    with storage.open_read(url) as file:
        assert file.read() == b"whole"
    assert len(storage.glob_files(folder)) == 1


def test_a_writer_killed_in_the_middle_leaves_the_old_content(tmp_path, python):
    target = tmp_path / "files" / "a.txt"
    storage.write_text(str(target), "whole")
    program = """
import sys
from infra import storage
with storage.write_atomic(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""
    writer = python("-c", program, str(target))
    assert writer.stdout.readline() == "written\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert target.read_text() == "whole"
    assert [f.url for f in storage.glob_files(str(target.parent))] == [str(target)]


def test_another_writers_file_is_seen_without_a_stale_listing():
    folder = f"memory://{uuid.uuid4().hex}"
    assert storage.glob_files(f"{folder}/*.txt") == []
    fsspec.filesystem("memory").pipe_file(f"{folder}/b.txt", b"1")
    fsspec.filesystem("memory").pipe_file(f"{folder}/a.txt", b"22")
    assert [(f.url.rsplit("/", 1)[1], f.size_bytes) for f in storage.glob_files(f"{folder}/*.txt")] == [
        ("a.txt", 2),
        ("b.txt", 1),
    ]


def test_patterns_cross_folders_only_when_asked(tmp_path):
    for name in ("a.py", "sub/b.py", "sub/c.txt"):
        storage.write_text(str(tmp_path / name), name)
    assert [f.url for f in storage.glob_files(f"{tmp_path}/*.py")] == [f"{tmp_path}/a.py"]
    assert [f.url for f in storage.glob_files(f"file://{tmp_path}/**/*.py")] == [
        f"{tmp_path}/a.py",
        f"{tmp_path}/sub/b.py",
    ]


def test_an_unknown_protocol_is_the_callers_mistake():
    with pytest.raises(InputError, match="gopher"):
        storage.glob_files("gopher://host/*")


@pytest.mark.parametrize("torn", [b'{"step":2,"loss":', '{"step":2,"text":"é'.encode()[:-1], b"\x00\x00\x00"])
def test_a_torn_line_is_left_out_and_spoils_no_other(tmp_path, torn):
    file = tmp_path / "metrics.jsonl"
    storage.append_json_line(file, {"step": 1})
    with file.open("ab") as stream:
        stream.write(torn)
    assert storage.read_json_lines(file) == [{"step": 1}]
    storage.append_json_line(file, {"step": 3})
    assert storage.read_json_lines(file) == [{"step": 1}, {"step": 3}]


def test_lines_of_many_writers_never_mix(tmp_path, python):
    file = tmp_path / "events.jsonl"
    program = """
import sys
from pathlib import Path
from infra.storage import append_json_line
sys.stdin.readline()
for n in range(200):
    append_json_line(Path(sys.argv[1]), {"writer": sys.argv[2], "n": n, "filler": "x" * 500})
"""
    writers = [python("-c", program, str(file), str(w)) for w in range(4)]
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    assert [writer.wait() for writer in writers] == [0] * 4
    rows = storage.read_json_lines(file)
    assert len(rows) == len(file.read_bytes().splitlines()) == 800
    for w in range(4):
        assert [row["n"] for row in rows if row["writer"] == str(w)] == list(range(200))


def test_equal_content_has_one_fingerprint_whatever_the_order_of_keys():
    assert storage.fingerprint({"a": 1, "b": [1, 2]}) == storage.fingerprint(json.loads('{"b": [1, 2], "a": 1}'))
    assert storage.fingerprint({"a": [1, 2]}) != storage.fingerprint({"a": [2, 1]})
