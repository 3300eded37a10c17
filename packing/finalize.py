import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra import storage
from infra.errors import InputError, StayerError
from packing import records
from packing.buckets import BucketReport, load_remainders
from packing.manifest import (
    FORMAT_VERSION,
    Conservation,
    DocumentCounts,
    Manifest,
    SourceReport,
    dataset_problems,
    held_out_file,
    load_manifest,
    manifest_path,
)
from packing.pack import plan_rows
from packing.plan import PreparationPlan
from packing.shards import ShardFile, read_token_batches, write_shards
from packing.tokenize import HELD_OUT, UnitReport

_MAX_FINDINGS = 100


def finished(plan: PreparationPlan) -> Manifest | None:
    """The manifest, if this very dataset was prepared before.

    Raises:
        InputError: it was, but files are missing or have another size by now.
    """
    if not records.is_finished(plan):
        return None
    manifest = load_manifest(plan.dataset)
    if problems := dataset_problems(manifest, plan.dataset, check_content=False):
        raise InputError(
            f"{plan.dataset} is damaged: {problems[0]} ({len(problems)} of its files in all)",
            hint="delete the folder and prepare again: the same input gives the same bytes",
        )
    return manifest


def finalize(plan: PreparationPlan) -> Manifest:
    """Write the last shards, the held-out rows and the manifest, then remove the work folder; idempotent.

    Raises:
        InputError: there is nothing to train on, or the finished dataset was damaged.
        StayerError: work before this is not done, or tokens were lost on the way.
    """
    manifest = finished(plan)
    if manifest is None:
        units = records.recall_all(plan, UnitReport, plan.num_units)
        buckets = records.recall_all(plan, BucketReport, plan.num_buckets)
        _check_not_empty(plan, units)
        shards = [shard for bucket in buckets for shard in bucket.shards] + _write_last_shards(plan, buckets)
        held_out = _write_held_out(plan, units)
        manifest = _manifest(plan, units, shards, held_out)
        manifest.conservation.check()
        if problems := dataset_problems(manifest, plan.dataset, check_content=False):
            raise StayerError(
                f"{plan.dataset}: {problems[0]}", hint="run the preparation again, it redoes what is damaged"
            )
        records.archive(plan, (UnitReport, plan.num_units), (BucketReport, plan.num_buckets))
        _remove_torn_files(Path(plan.dataset))
        storage.write_json(str(manifest_path(plan.dataset)), manifest.model_dump(mode="json"))
    shutil.rmtree(plan.work, ignore_errors=True)
    return manifest


def _check_not_empty(plan: PreparationPlan, units: list[UnitReport]) -> None:
    documents, empty = sum(u.documents for u in units), sum(u.empty for u in units)
    if not documents:
        raise InputError(
            f"no document of {', '.join(s.name for s in plan.data.sources)} holds text ({empty} are empty)",
            hint="check data.sources: uri, text_field",
        )
    if sum(u.tokens - u.held_out_tokens for u in units) == 0:
        raise InputError(
            f"nothing to train on: {documents} documents hold text, but all are held out "
            f"({sum(u.held_out_tokens for u in units)} tokens) or of a source with repeat: 0; "
            f"a single row takes up to {plan.packing.seq_len} tokens",
            hint="lower data.held_out_fraction, set repeat: 1 or add text",
        )


def _write_last_shards(plan: PreparationPlan, buckets: list[BucketReport]) -> list[ShardFile]:
    tokens, starts, lengths = load_remainders(plan, buckets)
    return _pack_in_order(plan, Path(plan.dataset), "shards-last", tokens, starts, lengths, plan.packing.strategy)


def _write_held_out(plan: PreparationPlan, units: list[UnitReport]) -> dict[str, list[ShardFile]]:
    """Rows to evaluate on: by source, documents in the order of their ids until the limit cuts the last one."""
    held_out = {}
    for source in plan.data.sources:
        documents = _held_out_documents(plan, [u for u in units if u.source == source.name])
        if documents:
            tokens, lengths = np.concatenate(documents), np.array([doc.size for doc in documents], dtype=np.int64)
            folder = Path(plan.dataset) / "held-out" / source.name
            files = _pack_in_order(plan, folder, "shards", tokens, np.cumsum(lengths) - lengths, lengths, "concat")
            held_out[source.name] = [held_out_file(source.name, file) for file in files]
    return held_out


def _held_out_documents(plan: PreparationPlan, units: list[UnitReport]) -> list[NDArray[Any]]:
    """Tokens of the held-out documents of a source that are kept; memory is the limit plus one unit's share."""
    kept: list[tuple[bytes, NDArray[Any]]] = []
    for unit in units:
        numbers = [number for number, batch in enumerate(unit.batches) if batch.bucket == HELD_OUT]
        for batch in read_token_batches(Path(plan.work), unit.written, numbers) if numbers else []:
            documents = np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])
            kept += zip(batch.ids.to_pylist(), documents, strict=True)
            kept.sort(key=lambda document: document[0])
            kept = _first_tokens(kept, plan.data.held_out_max_tokens)
    return [tokens for _, tokens in kept]


def _first_tokens(documents: list[tuple[bytes, NDArray[Any]]], limit: int) -> list[tuple[bytes, NDArray[Any]]]:
    """The first documents, `limit` tokens in all; copied, so that they hold no file open."""
    first = []
    for identity, tokens in documents:
        if limit <= 0:
            break
        first.append((identity, tokens[:limit].copy()))
        limit -= tokens.size
    return first


def _pack_in_order(
    plan: PreparationPlan,
    folder: Path,
    prefix: str,
    tokens: NDArray[Any],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    strategy: Any,
) -> list[ShardFile]:
    rows = plan_rows(starts, lengths, seq_len=plan.packing.seq_len, strategy=strategy)
    return write_shards(folder, prefix, tokens, rows, plan.shard_format, rows_per_shard=plan.packing.rows_per_shard)


def _manifest(
    plan: PreparationPlan, units: list[UnitReport], shards: list[ShardFile], held_out: dict[str, list[ShardFile]]
) -> Manifest:
    passes = {source.name: source.passes for source in plan.data.sources}
    effective = sum(shard.effective_tokens for shard in shards)
    kept = sum(shard.effective_tokens for files in held_out.values() for shard in files)
    all_held_out = sum(unit.held_out_tokens for unit in units)
    trained = sum((unit.tokens - unit.held_out_tokens) * passes[unit.source] for unit in units)
    over_limit = sum(
        max(0, sum(u.held_out_tokens for u in units if u.source == name) - plan.data.held_out_max_tokens)
        for name in passes
    )
    return Manifest(
        format_version=FORMAT_VERSION,
        dataset_id=plan.dataset_id,
        seq_len=plan.packing.seq_len,
        vocab_size=plan.vocab_size,
        eos_id=plan.eos_id,
        pad_id=plan.pad_id,
        tokenizer_sha256=plan.tokenizer_sha256,
        token_dtype=plan.token_dtype,
        seed=plan.data.seed,
        held_out_fraction=plan.data.held_out_fraction,
        held_out_max_tokens=plan.data.held_out_max_tokens,
        packing=plan.packing,
        rows=sum(shard.rows for shard in shards),
        effective_tokens=effective,
        shards=shards,
        held_out=held_out,
        sources=[_source_report(plan, index, units) for index in range(len(plan.data.sources))],
        conservation=Conservation(
            tokens_in=trained + all_held_out,
            effective_out=effective,
            held_out=kept,
            dropped={"held_out_limit": over_limit} if over_limit else {},
        ),
    ).sealed()


def _source_report(plan: PreparationPlan, index: int, units: list[UnitReport]) -> SourceReport:
    source = plan.data.sources[index]
    files = [file for unit in plan.units if unit.source == index for file in unit.files]
    mine = [unit for unit in units if unit.source == source.name]
    counts = {name: sum(getattr(unit, name) for unit in mine) for name in DocumentCounts.model_fields}
    return SourceReport(
        name=source.name,
        role=source.role,
        licence=source.licence,
        personal_data=source.personal_data,
        repeat=source.passes,
        files=len(files),
        content_sha256=storage.fingerprint([file.sha256 for file in files]),
        findings=[finding for unit in mine for finding in unit.findings][:_MAX_FINDINGS],
        **DocumentCounts.model_validate(counts).model_dump(),
    )


def _remove_torn_files(dataset: Path) -> None:
    """What writers that were killed left behind under temporary names."""
    for path in dataset.rglob(".*.tmp"):
        path.unlink(missing_ok=True)
