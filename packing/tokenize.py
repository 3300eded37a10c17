import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel

from infra.errors import InputError
from packing import records
from packing.documents import Document, InputFile, Rejected, read_documents
from packing.manifest import DocumentCounts, Finding
from packing.plan import PreparationPlan
from packing.shards import WrittenFile, to_dtype, token_batch, token_schema, write_batches
from packing.tokenizer import CorpusTokenizer

HELD_OUT = -1
"""Bucket number of documents that are not trained on."""
_BATCH_DOCUMENTS = 1024
_BATCH_CHARACTERS = 2 << 20
_FLUSH_TOKENS = 8 << 20
_MAX_FINDINGS = 100
_MAX_LINES = 10


class BatchInfo(BaseModel, frozen=True):
    """What one batch of a token file holds: documents of a single bucket."""

    bucket: int
    documents: int
    tokens: int


class UnitReport(DocumentCounts, frozen=True):
    """Completion record of a tokenized unit."""

    unit: int
    source: str
    findings: list[Finding]
    batches: list[BatchInfo]
    written: WrittenFile


def tokenize_unit(plan: PreparationPlan, unit: int) -> UnitReport:
    """Tokenize the documents of one unit and sort them into buckets; done before, it is recognised.

    Every document ends with one EOS. Its bucket, and whether it is held out, follow from a hash of its text.

    Raises:
        InputError: a file is damaged, changed since the plan was made, or not what its source says.
    """
    folder = Path(plan.work)
    report = records.recall(plan, UnitReport, unit)
    if report and (records.is_finished(plan) or report.written.problem(folder, check_content=True) is None):
        return report
    tally = _Tally()
    tokenizer = _load_tokenizer(plan.tokenizer_folder, plan.tokenizer_sha256)
    dtype = plan.token_dtype
    batches = _token_batches(_documents(plan, unit, tally), tokenizer, dtype, tally)
    written = write_batches(folder / f"unit-{unit:05d}.arrow", token_schema(dtype), batches)
    report = UnitReport(
        unit=unit,
        source=plan.data.sources[plan.units[unit].source].name,
        findings=tally.findings(),
        batches=tally.batches,
        written=written,
        **DocumentCounts.model_validate(
            {name: tally.counts[name] for name in DocumentCounts.model_fields}
        ).model_dump(),
    )
    records.keep(plan, report, unit)
    return report


def document_id(text: str, seed: int) -> bytes:
    """16 bytes that stand for a text: equal for duplicates, in every job of the same seed."""
    return hashlib.blake2b(text.encode(), digest_size=16, key=str(seed).encode()).digest()


def bucket_of(identity: bytes, *, held_out_fraction: float, num_buckets: int) -> int:
    """HELD_OUT or a bucket, from different halves of a document id; a smaller fraction holds out a subset."""
    if int.from_bytes(identity[:8], "little") < int(held_out_fraction * 2**64):
        return HELD_OUT
    return int.from_bytes(identity[8:], "little") % num_buckets


@dataclass
class _Tally:
    counts: Counter[str] = field(default_factory=Counter)
    seen: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    times: Counter[tuple[str, str]] = field(default_factory=Counter)
    batches: list[BatchInfo] = field(default_factory=list)

    def note(self, file: InputFile, what: str, line: int) -> None:
        self.times[file.name, what] += 1
        if len(self.seen[file.name, what]) < _MAX_LINES:
            self.seen[file.name, what].append(line)

    def findings(self) -> list[Finding]:
        found = [
            Finding(file=file, what=what, count=count, lines=self.seen[file, what])
            for (file, what), count in self.times.items()
        ]
        return found[:_MAX_FINDINGS]


@dataclass(frozen=True, slots=True)
class _Placed:
    """A document that is used, where it came from and where it goes."""

    file: InputFile
    document: Document
    identity: bytes
    bucket: int


def _documents(plan: PreparationPlan, unit: int, tally: _Tally) -> Iterator[_Placed]:
    """The documents of a unit that are used, counted."""
    source = plan.data.sources[plan.units[unit].source]
    for file in plan.units[unit].files:
        for document in read_documents(file, source):
            if isinstance(document, Rejected):
                tally.counts[document.reason] += 1
                tally.note(file, document.reason, document.line)
                continue
            tally.counts["documents"] += 1
            tally.counts["characters"] += len(document.text)
            tally.counts["repaired"] += bool(document.repairs)
            for repair in document.repairs:
                tally.note(file, repair, document.line)
            identity = document_id(document.text, plan.data.seed)
            bucket = bucket_of(
                identity, held_out_fraction=plan.data.held_out_fraction, num_buckets=plan.packing.buckets
            )
            if bucket != HELD_OUT and not source.passes:
                tally.counts["unused_documents"] += 1
                continue
            yield _Placed(file, document, identity, bucket)


def _token_batches(
    documents: Iterable[_Placed], tokenizer: CorpusTokenizer, dtype: str, tally: _Tally
) -> Iterator[pa.RecordBatch]:
    """Tokenize a stream of documents; memory is bounded by _FLUSH_TOKENS, or by one document."""
    waiting: dict[int, list[tuple[bytes, NDArray[np.uint32]]]] = defaultdict(list)
    num_waiting = 0
    for group in _groups(documents):
        for placed, ids in zip(group, _encode(tokenizer, group), strict=True):
            if not ids.size:  # the tokenizer's normalizer left nothing of it
                tally.counts["documents"] -= 1
                tally.counts["empty"] += 1
                tally.note(placed.file, "empty", placed.document.line)
                continue
            waiting[placed.bucket].append((placed.identity, ids))
            num_waiting += ids.size + 1
        if num_waiting >= _FLUSH_TOKENS:
            yield from _flush(waiting, tokenizer.eos_id, dtype, tally)
            num_waiting = 0
    yield from _flush(waiting, tokenizer.eos_id, dtype, tally)


def _groups(documents: Iterable[_Placed]) -> Iterator[list[_Placed]]:
    """Groups large enough to keep all threads of the tokenizer busy."""
    group: list[_Placed] = []
    characters = 0
    for placed in documents:
        group.append(placed)
        characters += len(placed.document.text)
        if len(group) == _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _encode(tokenizer: CorpusTokenizer, group: list[_Placed]) -> list[NDArray[np.uint32]]:
    try:
        return tokenizer.encode_batch([placed.document.text for placed in group])
    except InputError as err:
        first, last = (f"{placed.file.url}, line {placed.document.line}" for placed in (group[0], group[-1]))
        raise InputError(f"between {first} and {last}: {err.message}", hint=err.hint) from err


def _flush(
    waiting: dict[int, list[tuple[bytes, NDArray[np.uint32]]]], eos_id: int, dtype: str, tally: _Tally
) -> Iterator[pa.RecordBatch]:
    """One batch per bucket that has documents waiting; EOS is put at the end of each document here."""
    eos = np.array([eos_id], dtype=np.uint32)
    for bucket in sorted(waiting):
        documents = waiting[bucket]
        tokens: NDArray[Any] = np.concatenate(list(chain.from_iterable((ids, eos) for _, ids in documents)))
        lengths = np.array([ids.size + 1 for _, ids in documents], dtype=np.int64)
        tally.batches.append(BatchInfo(bucket=bucket, documents=lengths.size, tokens=tokens.size))
        tally.counts["tokens"] += tokens.size
        if bucket == HELD_OUT:
            tally.counts["held_out_documents"] += lengths.size
            tally.counts["held_out_tokens"] += tokens.size
        yield token_batch([identity for identity, _ in documents], to_dtype(tokens, dtype), lengths)
    waiting.clear()


@lru_cache(maxsize=2)
def _load_tokenizer(folder: str, sha256: str) -> CorpusTokenizer:
    tokenizer = CorpusTokenizer.load(folder)
    if tokenizer.sha256 != sha256:
        raise InputError(f"the tokenizer in {folder} changed since the preparation was planned", hint="prepare again")
    return tokenizer
