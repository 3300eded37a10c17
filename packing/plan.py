import fnmatch
import posixpath
import re
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from infra import storage
from infra.errors import InputError
from packing.config import DataConfig, PackingConfig, SourceConfig
from packing.documents import InputFile
from packing.manifest import FORMAT_VERSION
from packing.shards import ShardFormat, smallest_dtype
from packing.tokenizer import CorpusTokenizer

_UNIT_BYTES = 16 << 20
_JSONL = (".jsonl", ".json", ".ndjson")
_UNREADABLE = (".parquet", ".arrow", ".feather", ".zst", ".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz", ".7z", ".pdf")
_WILDCARD = re.compile(r"[*?\[]")


class Unit(BaseModel, frozen=True):
    """Files of one source that are tokenized together: what is lost, at most, when a worker dies."""

    source: int
    """Index into the sources."""
    files: list[InputFile]


class PreparationPlan(BaseModel, frozen=True):
    """Everything a worker needs to do its part of a preparation; travels between processes as JSON."""

    dataset_id: str
    root: str
    data: DataConfig
    packing: PackingConfig
    tokenizer_folder: str
    tokenizer_sha256: str
    vocab_size: int
    eos_id: int
    pad_id: int
    units: list[Unit]

    @property
    def dataset(self) -> str:
        """Folder of the dataset; holds a manifest when it is finished."""
        return storage.join(self.root, self.dataset_id[:16])

    @property
    def work(self) -> str:
        """Folder of what is made on the way; gone when the dataset is finished."""
        return storage.join(self.root, f".work-{self.dataset_id[:16]}")

    @property
    def num_units(self) -> int:
        """How many units there are to tokenize."""
        return len(self.units)

    @property
    def num_buckets(self) -> int:
        """How many buckets there are to pack."""
        return self.packing.buckets

    @property
    def token_dtype(self) -> str:
        """Type that stores a token, by the largest id the tokenizer can emit."""
        return smallest_dtype(self.vocab_size)

    @property
    def shard_format(self) -> ShardFormat:
        """What all shards of the dataset have in common."""
        return ShardFormat(
            dataset_id=self.dataset_id,
            tokenizer_sha256=self.tokenizer_sha256,
            seq_len=self.packing.seq_len,
            pad_id=self.pad_id,
            token_dtype=self.token_dtype,
        )


def plan_preparation(data: DataConfig, packing: PackingConfig, tokenizer_folder: str, root: str) -> PreparationPlan:
    """List and hash the input, and name the dataset that it will become.

    The dataset id covers the content of every file (not where it lies), the tokenizer and all settings that shape
    the dataset or its manifest: another input or setting is another folder, never a mixture.

    Args:
        data: the sources and the held-out split.
        packing: how rows are made.
        tokenizer_folder: Hugging Face folder.
        root: local folder that holds datasets, one folder each.

    Raises:
        InputError: a uri matches no file, a file is of a kind that is not read, or the tokenizer is unusable.
    """
    if not storage.is_local(root):
        raise InputError(f"{root}: datasets are written to local folders (mounted ones included)")
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    files = [[file.hashed() for file in list_files(source)] for source in data.sources]
    identity = {
        "format_version": FORMAT_VERSION,
        "tokenizer": tokenizer.sha256,
        "packing": packing.model_dump(),
        "data": data.model_dump(exclude={"sources"}),
        "sources": [
            source.model_dump(exclude={"uri", "exclude"})
            | {"content": [(f.sha256, f.format, f.gzipped) for f in found]}
            for source, found in zip(data.sources, files, strict=True)
        ],
    }
    return PreparationPlan(
        dataset_id=storage.fingerprint(identity),
        root=str(storage.local_path(root).absolute()),
        data=data,
        packing=packing,
        tokenizer_folder=tokenizer_folder,
        tokenizer_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        units=[unit for index, found in enumerate(files) for unit in _group(index, found)],
    )


@dataclass(frozen=True)
class FoundFile:
    """A file that a source names, not yet read."""

    url: str
    name: str
    """See `InputFile.name`."""
    size_bytes: int
    format: Literal["jsonl", "text"]
    gzipped: bool

    def hashed(self) -> InputFile:
        """Read the file once, to know it again."""
        return InputFile(**vars(self), sha256=storage.sha256_file(self.url))


def list_files(source: SourceConfig) -> list[FoundFile]:
    """Files of a source: in the order of its uris, sorted by path within each, none twice.

    Raises:
        InputError: a uri matches no file, or a file is of a kind that is not read.
    """
    found: dict[str, FoundFile] = {}
    for uri in source.uri:
        num_seen = 0
        for info in storage.glob_files(uri):
            url = str(storage.local_path(info.url).absolute()) if storage.is_local(info.url) else info.url
            name = _name_below(uri, url)
            if any(part.startswith(".") for part in name.split("/")) and not _names_a_file(uri, name):
                continue
            num_seen += 1
            if url in found or _excluded(source, url, name):
                continue
            kind, gzipped = _format(source, url)
            found[url] = FoundFile(url=url, name=name, size_bytes=info.size_bytes, format=kind, gzipped=gzipped)
        if not num_seen:
            raise InputError(
                f"data.sources[{source.name}].uri: {uri} matches no file", hint="check the path; globs may use * and **"
            )
    if not found:
        raise InputError(f"data.sources[{source.name}].exclude leaves no file of {', '.join(source.uri)}")
    return list(found.values())


def _name_below(uri: str, url: str) -> str:
    """Path of a found file below the part of the uri without wildcards."""
    uri = str(storage.local_path(uri).absolute()) if storage.is_local(uri) else uri
    base, path = (part.split("://", 1)[-1].strip("/") for part in (uri, url))
    if wildcard := _WILDCARD.search(base):
        base = base[: wildcard.start()].rpartition("/")[0]
    return posixpath.basename(path) if base == path else posixpath.relpath("/" + path, "/" + base)


def _names_a_file(uri: str, name: str) -> bool:
    return _WILDCARD.search(uri) is None and posixpath.basename(uri) == name


def _excluded(source: SourceConfig, url: str, name: str) -> bool:
    candidates = (url, name, posixpath.basename(name))
    return any(fnmatch.fnmatchcase(candidate, pattern) for pattern in source.exclude for candidate in candidates)


def _format(source: SourceConfig, url: str) -> tuple[Literal["jsonl", "text"], bool]:
    plain = url.lower().removesuffix(".gz")
    if plain.endswith(_UNREADABLE):
        raise InputError(
            f"data.sources[{source.name}]: cannot read {url}: JSON lines and plain text are read, either gzipped",
            hint="convert the file, or leave it out with exclude",
        )
    if source.format != "auto":
        return source.format, plain != url.lower()
    return ("jsonl" if plain.endswith(_JSONL) else "text"), plain != url.lower()


def _group(source: int, files: list[InputFile]) -> list[Unit]:
    """Consecutive files, about _UNIT_BYTES a unit; a file is never split."""
    units: list[list[InputFile]] = []
    size_bytes = 0
    for file in files:
        if not units or size_bytes + file.size_bytes > _UNIT_BYTES:
            units.append([])
            size_bytes = 0
        units[-1].append(file)
        size_bytes += file.size_bytes
    return [Unit(source=source, files=unit) for unit in units]
