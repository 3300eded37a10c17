"""Files at any fsspec URL; plain paths are local files. Nothing appears under a final name before it is whole."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsspec
from fsspec import AbstractFileSystem

from infra.errors import InputError

_CHUNK_BYTES = 1 << 20
_TEMPORARY = ".tmp"


@dataclass(frozen=True)
class FileInfo:
    """One file found in a listing."""

    url: str
    size_bytes: int


def is_local(url: str) -> bool:
    """Whether the URL names a file of this machine."""
    return "://" not in url or url.startswith(("file://", "local://"))


def local_path(url: str) -> Path:
    """The path behind a plain path or ``file://`` URL."""
    return Path(url.split("://", 1)[1] if "://" in url else url).expanduser()


def join(url: str, *parts: str) -> str:
    """Append path parts to a URL."""
    return "/".join([url.rstrip("/"), *parts])


def filesystem(url: str) -> tuple[AbstractFileSystem, str]:
    """The file system behind a URL and the path on it; listings are always asked fresh.

    Raises:
        InputError: the protocol is unknown or its package is not installed.
    """
    if is_local(url):
        return fsspec.filesystem("file"), str(local_path(url))
    protocol = url.split("://", 1)[0]
    try:
        # Another process may write what this one looks for: no listing cache, no shared instance across forks.
        fs = fsspec.filesystem(protocol, use_listings_cache=False)
    except (ValueError, ImportError) as err:
        raise InputError(f"{url}: cannot open {protocol}:// ({err})", hint="use a local path or s3://") from err
    return fs, fs._strip_protocol(url)


def glob_files(pattern: str) -> list[FileInfo]:
    """Files that match a URL pattern (``**`` crosses folders), sorted by path.

    A pattern without wildcards that names a folder lists everything below it.
    """
    fs, path = filesystem(pattern)
    if not any(c in path for c in "*?["):
        if fs.isfile(path):
            return [FileInfo(_as_url(path, like=pattern), int(fs.size(path)))]
        path = path.rstrip("/") + "/**"
    found = sorted(fs.glob(path, detail=True).items())
    return [
        FileInfo(_as_url(p, like=pattern), int(info["size"]))
        for p, info in found
        if info["type"] == "file" and not _is_temporary(p)
    ]


def _as_url(path: str, *, like: str) -> str:
    if is_local(like) or "://" in path:  # http's paths are URLs already
        return path
    return like.split("://", 1)[0] + "://" + path.lstrip("/")


@contextlib.contextmanager
def open_read(url: str) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes."""
    fs, path = filesystem(url)
    with fs.open(path, "rb") as file:
        yield file


@contextlib.contextmanager
def write_atomic(url: str) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when the block ends without an exception, fsynced."""
    if is_local(url):
        with _write_local(local_path(url)) as file:
            yield file
        return
    # Object stores publish on close; buffering locally keeps an exception from publishing half an object.
    with tempfile.TemporaryFile() as buffer:
        yield buffer
        buffer.seek(0)
        fs, path = filesystem(url)
        fs.pipe_file(path, buffer.read())


@contextlib.contextmanager
def _write_local(path: Path) -> Iterator[IO[bytes]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}{_TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        fsync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _is_temporary(path: str) -> bool:
    """Whether a file is what a killed writer left of `write_atomic`."""
    name = path.rsplit("/", 1)[-1]
    return name.startswith(".") and name.endswith(_TEMPORARY)


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable (a rename is not, until its folder is synced)."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_text(url: str, text: str) -> None:
    """Write a text file atomically."""
    with write_atomic(url) as file:
        file.write(text.encode())


def write_json(url: str, value: Any) -> None:
    """Write JSON atomically."""
    write_text(url, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(url: str) -> Any:
    """Read a JSON file."""
    with open_read(url) as file:
        return json.load(file)


def append_json_line(path: Path, value: dict[str, Any]) -> None:
    """Append one JSON object as a line of its own, whoever else appends at the same moment.

    Raises:
        OSError: the disk has no room for the whole line; what was written of it is torn, and readers leave it out.
    """
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # between the look at the end and the write nobody else may write
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":  # a writer died in the middle of a line
            line = b"\n" + line
        if os.write(fd, line) < len(line):  # the disk is nearly full: the rest of the line is nowhere
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(fd)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a JSON-lines file; a torn line (its writer died) is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        with contextlib.suppress(ValueError):  # torn between two characters, or in the middle of one
            row = json.loads(line)
            if isinstance(row, dict):
                rows.append(row)
    return rows


def sha256_file(url: str) -> str:
    """SHA-256 of a file's bytes, as hex."""
    digest = hashlib.sha256()
    with open_read(url) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def fingerprint(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form, as hex: equal content, equal fingerprint."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()
