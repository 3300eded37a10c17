import math

import pytest
import torch

from eval.perplexity import Score, score
from packing.config import DataConfig, PackingConfig, SourceConfig
from packing.dataset import PackedDataset
from packing.prepare import plan_preparation, prepare
from packing.tokenizer import train_byte_bpe
from training.model import build_model

ARCHITECTURE = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 300,
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    texts = [f"document number {i} has some words in it" for i in range(40)]
    for i, text in enumerate(texts):
        (folder / f"{i:03d}.txt").write_text(text)
    train_byte_bpe(texts, folder / "tokenizer", vocab_size=300)
    data = DataConfig(sources=[SourceConfig(name="text", uri=[f"{folder}/*.txt"])], held_out_fraction=0.3)
    plan = plan_preparation(data, PackingConfig(seq_len=64), str(folder / "tokenizer"), str(folder / "datasets"))
    prepare(plan)
    return PackedDataset(plan.dataset, split="held-out/text")


@pytest.fixture(scope="module")
def model():
    return build_model(folder=None, architecture=ARCHITECTURE, seed=1, vocab_size=300, seq_len=64).eval()


def test_the_score_is_that_of_each_document_alone(model, dataset):
    nats, targets = 0.0, 0
    for row in range(dataset.num_rows):
        rows = dataset.rows(torch.tensor([row]).numpy())
        start = 0
        for length in rows.document_lengths[0]:
            ids = torch.from_numpy(rows.input_ids[:1, start : start + length].copy())
            start += int(length)
            with torch.no_grad():
                logits = model.lm(input_ids=ids, use_cache=False).logits[0, :-1].double()
            nats += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum"))
            targets += int(length) - 1
    found = score(model, dataset, batch_rows=3)
    assert found.targets == targets
    assert found.nats == pytest.approx(nats, rel=1e-5)


def test_the_batch_size_changes_nothing_and_max_rows_takes_the_first_ones(model, dataset):
    whole = score(model, dataset, batch_rows=1)
    assert score(model, dataset, batch_rows=7).nats == pytest.approx(whole.nats, rel=1e-6)
    first = score(model, dataset, batch_rows=7, max_rows=1)
    assert 0 < first.targets < whole.targets


def test_bad_weights_show_as_what_they_are():
    assert math.isnan(Score(nats=math.nan, targets=10).perplexity)
    assert Score(nats=1e6, targets=10).perplexity == math.inf
    assert (Score(nats=1.0, targets=2) + Score(nats=2.0, targets=1)).perplexity == pytest.approx(math.e)
