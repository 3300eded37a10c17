import posixpath
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from infra import storage
from infra.errors import InputError, StayerError
from packing.config import PackingConfig
from packing.shards import ShardFile

FORMAT_VERSION = 1
"""Grows when the same input would give other bytes; part of every dataset id."""
MANIFEST_FILE = "manifest.json"


class Finding(BaseModel, frozen=True):
    """Something about an input file that was handled by rule, and that its owner may want to know."""

    file: str
    what: str
    """`empty`, `invalid UTF-8` or `lone surrogate`."""
    count: int
    lines: list[int]
    """The first lines it was seen on, ten at most."""


class DocumentCounts(BaseModel, frozen=True):
    """What became of the documents of a source, or of a part of it."""

    documents: int
    """Documents with text, each counted once whatever `repeat` says."""
    characters: int
    tokens: int
    """Tokens of the documents that were tokenized, one EOS each included."""
    held_out_documents: int
    held_out_tokens: int
    unused_documents: int
    """Documents neither trained on nor held out, hence not tokenized: those of a source with `repeat: 0`."""
    empty: int
    """Documents left out because they hold no text."""
    repaired: int
    """Documents in which something was replaced by U+FFFD."""


class SourceReport(DocumentCounts, frozen=True):
    """What came out of one source."""

    name: str
    role: Literal["domain", "general"]
    licence: str
    personal_data: bool
    repeat: int
    files: int
    content_sha256: str
    """Hash over the content hashes of its files, in order."""
    findings: list[Finding]
    """The first hundred; the counts are complete."""


class Conservation(BaseModel, frozen=True):
    """Where every token went. A document repeated twice counts twice."""

    tokens_in: int
    effective_out: int
    held_out: int
    dropped: dict[str, int]
    """Tokens by reason."""

    def check(self) -> None:
        """Make sure that no token was lost or doubled.

        Raises:
            StayerError: tokens are missing or too many.
        """
        out = self.effective_out + self.held_out + sum(self.dropped.values())
        if out != self.tokens_in:
            raise StayerError(
                f"packing does not conserve tokens: {self.tokens_in} in, {out} out ({self.effective_out} in rows, "
                f"{self.held_out} held out, dropped {self.dropped}); no dataset was written",
                hint="this is a bug in packing, please report it",
            )


class Manifest(BaseModel, frozen=True):
    """`manifest.json`: what a packed dataset is. Written last; without it the dataset does not exist."""

    format_version: int
    dataset_id: str
    seq_len: int
    vocab_size: int
    eos_id: int
    pad_id: int
    tokenizer_sha256: str
    token_dtype: str
    seed: int
    held_out_fraction: float
    held_out_max_tokens: int
    packing: PackingConfig
    rows: int
    effective_tokens: int
    shards: list[ShardFile]
    """The training data, in order."""
    held_out: dict[str, list[ShardFile]]
    """Evaluation rows by source; sources from which nothing was held out are not listed."""
    sources: list[SourceReport]
    conservation: Conservation
    fingerprint: str = ""
    """Hash over everything above."""

    def content_fingerprint(self) -> str:
        """The hash that `fingerprint` must be."""
        return storage.fingerprint(self.model_dump(mode="json", exclude={"fingerprint"}))

    def sealed(self) -> "Manifest":
        """The same manifest with its fingerprint."""
        return self.model_copy(update={"fingerprint": self.content_fingerprint()})

    def split(self, name: str) -> list[ShardFile]:
        """Shards of `train` or of `held-out/<source>`.

        Raises:
            InputError: there is no such split.
        """
        splits = {"train": self.shards} | {f"held-out/{source}": files for source, files in self.held_out.items()}
        if name not in splits:
            raise InputError(f"dataset {self.dataset_id[:16]} has no split {name!r}, it has {', '.join(splits)}")
        return splits[name]


def load_manifest(folder: str) -> Manifest:
    """Read the manifest of a dataset.

    Raises:
        InputError: the folder is no finished dataset, is of another format version, or its manifest was altered.
    """
    url = storage.join(folder, MANIFEST_FILE)
    try:
        raw: dict[str, Any] = storage.read_json(url)
    except FileNotFoundError as err:
        raise InputError(f"{folder} is not a packed dataset: it holds no {MANIFEST_FILE}") from err
    if (version := raw.get("format_version")) != FORMAT_VERSION:
        raise InputError(f"{url} has format version {version}, this program reads {FORMAT_VERSION}")
    manifest = Manifest.model_validate(raw)
    if manifest.fingerprint != manifest.content_fingerprint():
        raise InputError(f"{url} was altered after it was written", hint="prepare the dataset again")
    return manifest


def verify_dataset(folder: str) -> list[str]:
    """Read every byte of a dataset and compare it with the manifest.

    Returns:
        One line for each file that is missing, has another size or other content; empty for a sound dataset.

    Raises:
        InputError: as `load_manifest`.
    """
    return dataset_problems(load_manifest(folder), folder, check_content=True)


def dataset_problems(manifest: Manifest, folder: str, *, check_content: bool) -> list[str]:
    """What is wrong with the files of a dataset, see `WrittenFile.problem`."""
    files = [*manifest.shards, *(file for files in manifest.held_out.values() for file in files)]
    problems = (file.problem(storage.local_path(folder), check_content=check_content) for file in files)
    return [problem for problem in problems if problem]


def held_out_file(source: str, file: ShardFile) -> ShardFile:
    """A held-out shard, listed by its path below the dataset folder."""
    return file.model_copy(update={"file": posixpath.join("held-out", source, file.file)})


def manifest_path(folder: str) -> Path:
    """Where a dataset's manifest stands."""
    return storage.local_path(storage.join(folder, MANIFEST_FILE))
