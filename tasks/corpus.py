"""Preparation as tasks that can be repeated alone: each recognises finished work and leaves the same bytes."""

from pathlib import Path

from prefect import task
from pydantic import BaseModel

from infra import storage
from packing.config import DataConfig, PackingConfig
from packing.documents import Document, read_documents
from packing.manifest import Manifest
from packing.plan import list_files
from packing.prepare import (
    BucketReport,
    PreparationPlan,
    UnitReport,
    finalize,
    pack_bucket,
    plan_preparation,
    tokenize_unit,
)
from packing.tokenizer import train_byte_bpe
from tasks.stages import BOARD


class PreparedData(BaseModel, frozen=True):
    """What preparation hands to training."""

    dataset: str
    """Folder of the packed dataset."""
    dataset_id: str
    tokenizer: str
    """Folder of the tokenizer."""


@task(name="train-tokenizer")
def make_tokenizer(data: DataConfig, *, vocab_size: int, root: str) -> str:
    """Train the job's tokenizer on all of its sources, or find it trained; returns its folder."""
    found = [(source, file.hashed()) for source in data.sources for file in list_files(source)]
    content = [[source.name, source.text_field, file.sha256] for source, file in found]
    folder = Path(root) / storage.fingerprint([content, vocab_size])[:16]
    if folder.is_dir():
        return str(folder)
    documents = (item for source, file in found for item in read_documents(file, source))
    texts = (item.text for item in documents if isinstance(item, Document))
    train_byte_bpe(texts, folder, vocab_size=vocab_size)
    return str(folder)


@task(name="plan-preparation")
def plan(data: DataConfig, packing: PackingConfig, *, tokenizer: str, root: str) -> PreparationPlan:
    """List and hash the input files, and name the dataset they make."""
    return plan_preparation(data, packing, tokenizer, root)


@task(name="tokenize", task_run_name="tokenize-{unit}")
def tokenize(plan: PreparationPlan, unit: int) -> UnitReport:
    """Tokenize one unit of input files into buckets."""
    report = tokenize_unit(plan, unit)
    BOARD.advance("tokenize")
    return report


@task(name="pack", task_run_name="pack-{bucket}")
def pack(plan: PreparationPlan, bucket: int) -> BucketReport:
    """Shuffle and pack one bucket into shards."""
    report = pack_bucket(plan, bucket)
    BOARD.advance("pack")
    return report


@task(name="write-manifest")
def write_manifest(plan: PreparationPlan) -> Manifest:
    """Pack the remainders and the held-out documents, prove conservation, and make the dataset exist."""
    return finalize(plan)
