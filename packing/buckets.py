from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from packing import records
from packing.order import shuffled
from packing.pack import RowPlan, plan_rows
from packing.plan import PreparationPlan
from packing.shards import (
    ShardFile,
    WrittenFile,
    read_token_batches,
    token_batch,
    token_schema,
    write_batches,
    write_shards,
)
from packing.tokenize import UnitReport

# Keys that keep the shuffles of one seed apart.
_DOCUMENTS, _ROWS = 1, 2


class BucketReport(BaseModel, frozen=True):
    """Completion record of a packed bucket."""

    bucket: int
    tokens: int
    """Tokens that came in, a repeated document as often as it is repeated."""
    shards: list[ShardFile]
    """Below the dataset folder."""
    remainder: WrittenFile
    """Pieces left for the last shards, below the work folder."""
    remainder_tokens: int


def pack_bucket(plan: PreparationPlan, bucket: int) -> BucketReport:
    """Shuffle, pack and write the documents of one bucket; done before, it is recognised.

    Full rows become shards; what does not fill a row is left to `finalize`, which packs the remainders of all
    buckets together. Rows are shuffled for both strategies: best fit sorts by length, and concat puts the parts
    of a long document into neighbouring rows, so that a step would train on little else.

    Memory: the tokens of one bucket, plus one shard.

    Raises:
        StayerError: not all units are tokenized.
    """
    work, dataset = Path(plan.work), Path(plan.dataset)
    if report := records.recall(plan, BucketReport, bucket):
        listed = [(work, report.remainder), *((dataset, shard) for shard in report.shards)]
        if records.is_finished(plan) or not any(f.problem(folder, check_content=True) for folder, f in listed):
            return report
    tokens, starts, lengths = _load_documents(plan, bucket)
    rows = plan_rows(starts, lengths, seq_len=plan.packing.seq_len, strategy=plan.packing.strategy)
    full, rest = _split_off_remainder(rows, plan)
    full = full.select(shuffled(full.num_rows, plan.data.seed, bucket, _ROWS))
    shards = write_shards(
        dataset, f"shards-{bucket:04d}", tokens, full, plan.shard_format, rows_per_shard=plan.packing.rows_per_shard
    )
    report = BucketReport(
        bucket=bucket,
        tokens=int(lengths.sum()),
        shards=shards,
        remainder=_write_remainder(work / f"remainder-{bucket:04d}.arrow", tokens, rest),
        remainder_tokens=int(rest.piece_lengths.sum()),
    )
    records.keep(plan, report, bucket)
    return report


def load_remainders(
    plan: PreparationPlan, reports: list[BucketReport]
) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Pieces that no bucket had a full row for: flat tokens, starts and lengths."""
    batches = [b for report in reports for b in read_token_batches(Path(plan.work), report.remainder, [0])]
    lengths = np.concatenate([batch.lengths for batch in batches])
    return np.concatenate([batch.tokens for batch in batches]), np.cumsum(lengths) - lengths, lengths


def _load_documents(plan: PreparationPlan, bucket: int) -> tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]:
    """Flat tokens of the bucket, and starts and lengths of its documents, repeated and shuffled."""
    reports = records.recall_all(plan, UnitReport, plan.num_units)
    passes = {source.name: source.passes for source in plan.data.sources}
    tokens = np.empty(sum(b.tokens for r in reports for b in r.batches if b.bucket == bucket), plan.token_dtype)
    lengths, repeats, filled = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for report in reports:
        numbers = [number for number, batch in enumerate(report.batches) if batch.bucket == bucket]
        for batch in read_token_batches(Path(plan.work), report.written, numbers) if numbers else []:
            tokens[filled : filled + batch.tokens.size] = batch.tokens
            filled += batch.tokens.size
            lengths.append(batch.lengths)
            repeats.append(np.full(batch.lengths.size, passes[report.source]))
    all_lengths = np.concatenate(lengths)
    docs = np.repeat(np.arange(all_lengths.size), np.concatenate(repeats))
    docs = docs[shuffled(docs.size, plan.data.seed, bucket, _DOCUMENTS)]
    return tokens, (np.cumsum(all_lengths) - all_lengths)[docs], all_lengths[docs]


def _split_off_remainder(rows: RowPlan, plan: PreparationPlan) -> tuple[RowPlan, RowPlan]:
    """Concat carries the last row unless it is full; best fit the rows less than half full, which is one at most."""
    enough = plan.packing.seq_len if plan.packing.strategy == "concat" else (plan.packing.seq_len + 1) // 2
    is_full = rows.row_tokens() >= enough
    return rows.select(np.flatnonzero(is_full)), rows.select(np.flatnonzero(~is_full))


def _write_remainder(path: Path, tokens: NDArray[Any], rest: RowPlan) -> WrittenFile:
    pieces = [
        tokens[start : start + length]
        for start, length in zip(rest.piece_starts.tolist(), rest.piece_lengths.tolist(), strict=True)
    ]
    flat = np.concatenate([tokens[:0], *pieces])
    batch = token_batch([None] * len(pieces), flat, rest.piece_lengths)
    return write_batches(path, token_schema(str(tokens.dtype)), [batch])
