import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from packing.config import DataConfig, PackingConfig, SourceConfig
from packing.prepare import Manifest, PreparationPlan, plan_preparation, prepare
from packing.tokenizer import train_byte_bpe

SENTENCES = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs", "a b c d e f g"]


@pytest.fixture(autouse=True, scope="session")
def _no_fsync() -> Iterator[None]:
    """Waiting for the disk protects against power loss, which no test here causes, and takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer") / "bpe"
    train_byte_bpe(SENTENCES * 4, folder, vocab_size=300)
    return str(folder)


@pytest.fixture(scope="session")
def word_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """A tokenizer of `w0 w1 w2 …` in which word n has id n; EOS, spelled </s>, comes after them."""

    def make(num_words: int, *, marker_is_word: bool = False) -> str:
        folder = tmp_path_factory.mktemp("words")
        vocab = {f"w{n}": n for n in range(num_words)} | ({"</s>": num_words} if marker_is_word else {})
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "config.json").write_text(json.dumps({"eos_token_id": [num_words]}))
        return str(folder)

    return make


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[..., str]:
    """Write records (a string stands for {"text": string}) as JSON lines, gzipped if the name says so."""

    def write(records: Iterable[Any], name: str = "docs.jsonl") -> str:
        lines = [json.dumps({"text": r} if isinstance(r, str) else r) + "\n" for r in records]
        raw = "".join(lines).encode()
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(raw, mtime=0) if name.endswith(".gz") else raw)
        return str(path)

    return write


@pytest.fixture
def make_plan(tmp_path: Path, tokenizer_folder: str) -> Callable[..., PreparationPlan]:
    """Plan the preparation of one source, or of those given."""

    def make(
        uri: str | list[str] | None = None,
        *,
        sources: list[SourceConfig] | None = None,
        tokenizer: str | None = None,
        root: str = "datasets",
        held_out_fraction: float = 0.0,
        held_out_max_tokens: int = 200_000,
        seed: int = 0,
        **packing: Any,
    ) -> PreparationPlan:
        data = DataConfig(
            sources=sources or [SourceConfig(name="docs", uri=uri)],
            held_out_fraction=held_out_fraction,
            held_out_max_tokens=held_out_max_tokens,
            seed=seed,
        )
        config = PackingConfig(**({"seq_len": 32, "buckets": 2, "rows_per_shard": 50} | packing))
        return plan_preparation(data, config, tokenizer or tokenizer_folder, str(tmp_path / root))

    return make


@pytest.fixture
def make_dataset(
    write_jsonl: Callable[..., str], make_plan: Callable[..., PreparationPlan]
) -> Callable[..., tuple[str, Manifest]]:
    """Prepare texts; returns the folder and its manifest."""

    def make(texts: Iterable[str], **settings: Any) -> tuple[str, Manifest]:
        plan = make_plan(write_jsonl(texts), **settings)
        return plan.dataset, prepare(plan)

    return make


@pytest.fixture
def texts() -> list[str]:
    """Two hundred different documents of 1 to 60 words."""
    return [" ".join(f"{n * 7 + k} {SENTENCES[k % 3].split()[n % 7]}" for k in range(n % 30 + 1)) for n in range(200)]
