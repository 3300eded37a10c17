"""Reading documents out of source files.

One policy: what could be read wrongly stops the preparation, naming file and line (malformed JSON, a record
without the text field, a text that is no string, a damaged .gz). What can be repaired without loss of meaning
is repaired and counted: bytes that are not UTF-8 and lone surrogates become U+FFFD. Documents without text are
left out and counted.
"""

import contextlib
import difflib
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Literal

from pydantic import BaseModel

from infra import storage
from infra.errors import InputError
from packing.config import SourceConfig
from packing.tokenizer import replace_surrogates

_BOM = b"\xef\xbb\xbf"
_CHUNK_BYTES = 1 << 20


class InputFile(BaseModel, frozen=True):
    """One source file, as it was when the preparation was planned."""

    url: str
    name: str
    """Path below the folder or glob that found it: does not change when the whole source moves."""
    size_bytes: int
    sha256: str
    format: Literal["jsonl", "text"]
    gzipped: bool


@dataclass(frozen=True, slots=True)
class Document:
    """One text with something in it, always encodable as UTF-8."""

    text: str
    line: int
    """Line it began on, from 1."""
    repairs: tuple[str, ...] = ()
    """What was replaced by U+FFFD: `invalid UTF-8`, `lone surrogate`."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A document left out."""

    line: int
    reason: str


def read_documents(file: InputFile, source: SourceConfig) -> Iterator[Document | Rejected]:
    """Every document of a file, in order, good or rejected.

    Raises:
        InputError: the file is damaged or not what the source says; names file, line and what was found.
    """
    with _open_checked(file) as stream:
        texts = _json_texts(stream, file, source.text_field) if file.format == "jsonl" else _whole_text(stream)
        for line, text, repairs in texts:
            if not text or text.isspace():
                yield Rejected(line, "empty")
                continue
            if not text.isascii():
                text, num_surrogates = replace_surrogates(text)
                repairs += ("lone surrogate",) * (num_surrogates > 0)
            yield Document(text, line, repairs)


def _json_texts(stream: IO[bytes], file: InputFile, field: str) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    for line, raw in enumerate(stream, start=1):
        if not raw.strip():
            continue
        raw = raw.rstrip(b"\r\n")
        decoded, repairs = _decode(raw.removeprefix(_BOM) if line == 1 else raw)
        where = f"{file.url}, line {line}"
        try:
            # Numbers are never text: as floats they cannot run into the limit on the digits of an int.
            record = json.loads(decoded, parse_int=float)
        except json.JSONDecodeError as err:
            raise InputError(
                f"{where}: not JSON ({err.msg} at column {err.colno})", hint="a jsonl file holds one object a line"
            ) from err
        except RecursionError as err:
            raise InputError(f"{where}: JSON nested too deeply to read") from err
        yield line, _text_of(record, field, where), repairs


def _whole_text(stream: IO[bytes]) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    text, repairs = _decode(stream.read().removeprefix(_BOM))
    yield 1, text, repairs


def _decode(raw: bytes) -> tuple[str, tuple[str, ...]]:
    try:
        return raw.decode(), ()
    except UnicodeDecodeError:
        return raw.decode(errors="replace"), ("invalid UTF-8",)


def _text_of(record: Any, field: str, where: str) -> str:
    """The text under a key, or under a dotted path when no key is spelled like that."""
    value = record
    for key in [field] if isinstance(record, dict) and field in record else field.split("."):
        if not isinstance(value, dict):
            raise InputError(f"{where}: expected an object with the key {key!r}, found {_kind(value)}")
        if key not in value:
            near = difflib.get_close_matches(key, value, n=1)
            raise InputError(
                f"{where}: no field {key!r} (text_field is {field!r}); the record has {', '.join(value) or 'none'}",
                hint=f"did you mean text_field: {near[0]}?" if near else "set text_field to the field with the text",
            )
        value = value[key]
    if not isinstance(value, str):
        raise InputError(f"{where}: the field {field!r} holds {_kind(value)}, only a string is accepted")
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", float: "a number", bool: "true or false", str: "a string"}
    return names.get(type(value), "null")


@contextlib.contextmanager
def _open_checked(file: InputFile) -> Iterator[IO[bytes]]:
    """Open a file, unzipped, and make sure at its end that it still is the file that was planned."""
    with storage.open_read(file.url) as raw:
        hashing = _HashingReader(raw)
        stream: IO[bytes] = io.BufferedReader(hashing, _CHUNK_BYTES)
        try:
            yield gzip.GzipFile(fileobj=stream, mode="rb") if file.gzipped else stream  # type: ignore[misc]
        except (EOFError, gzip.BadGzipFile, zlib.error) as err:
            raise InputError(
                f"{file.url}: damaged gzip file ({err})",
                hint="fetch it again (a download cut short looks like this), or exclude it",
            ) from err
        while stream.read(_CHUNK_BYTES):
            pass
        if hashing.digest.hexdigest() != file.sha256:
            raise InputError(f"{file.url} changed while it was prepared", hint="prepare again")


class _HashingReader(io.RawIOBase):
    """Passes bytes on and digests them, so that checking costs no second read."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._raw.read(len(buffer))
        buffer[: len(chunk)] = chunk
        self.digest.update(chunk)
        return len(chunk)
