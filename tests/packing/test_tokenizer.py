import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from infra.errors import InputError
from packing.tokenizer import EOS_TOKEN, PAD_TOKEN, CorpusTokenizer, train_byte_bpe


def test_training_is_deterministic_and_writes_a_complete_folder(tmp_path):
    texts = ["some words that repeat, some words that do not", "words, words, words"]
    for name in "ab":
        train_byte_bpe(texts, tmp_path / name, vocab_size=280)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["tokenizer.json", "tokenizer_config.json"]
    assert all((tmp_path / "a" / f).read_bytes() == (tmp_path / "b" / f).read_bytes() for f in files)


def test_an_interrupted_training_leaves_no_folder(tmp_path):
    def texts():
        yield "one"
        raise KeyError("source broke")

    with pytest.raises(KeyError):
        train_byte_bpe(texts(), tmp_path / "tok", vocab_size=280)
    assert not any(tmp_path.iterdir())


def test_an_existing_folder_is_never_overwritten(tmp_path):
    with pytest.raises(InputError, match="exists"):
        train_byte_bpe(["a"], tmp_path, vocab_size=280)


def test_a_vocabulary_too_small_for_the_bytes_is_refused(tmp_path):
    with pytest.raises(InputError, match="at least 258"):
        train_byte_bpe(["a"], tmp_path / "tok", vocab_size=257)


def test_a_trained_folder_loads_with_its_control_tokens(tokenizer_folder):
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    assert tokenizer.token(tokenizer.eos_id) == EOS_TOKEN
    assert tokenizer.token(tokenizer.pad_id) == PAD_TOKEN
    assert tokenizer.vocab_size == 300


def test_a_trained_folder_loads_in_transformers_with_equal_ids(tokenizer_folder):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    ours = CorpusTokenizer.load(tokenizer_folder)
    text = "the quick brown fox, déjà vu 🦊\n\n  indented"
    assert theirs(text)["input_ids"] == ours.encode_batch([text])[0].tolist()
    assert (theirs.eos_token_id, theirs.pad_token_id) == (ours.eos_id, ours.pad_id)


@pytest.fixture
def marked_folder(tmp_path: Path, tokenizer_folder: str) -> str:
    """A tokenizer as chat models have them: markers special and not, and ordinary added tokens."""
    tokenizer = Tokenizer.from_file(f"{tokenizer_folder}/tokenizer.json")
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True)])
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("<|fim_prefix|>", normalized=False)])
    tokenizer.add_tokens([AddedToken("        ", special=False), AddedToken("acetylsalicylic", special=False)])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": {"content": EOS_TOKEN, "special": True}}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(config))
    return str(tmp_path)


@pytest.mark.parametrize("marker", [EOS_TOKEN, PAD_TOKEN, "<|im_start|>", "<think>", "<|fim_prefix|>"])
def test_markers_in_text_never_become_control_ids(marked_folder, marker):
    text = f"before {marker} after {marker}"
    by_default = Tokenizer.from_file(f"{marked_folder}/tokenizer.json")
    by_default.no_truncation()
    control_id = by_default.token_to_id(marker)
    assert control_id in by_default.encode(text).ids
    tokenizer = CorpusTokenizer.load(marked_folder)
    [ids] = tokenizer.encode_batch([text])
    assert control_id not in ids
    assert tokenizer.decode(ids) == text


def test_added_words_and_spaces_stay_single_tokens(marked_folder):
    tokenizer = CorpusTokenizer.load(marked_folder)
    assert [ids.size for ids in tokenizer.encode_batch(["acetylsalicylic", "        "])] == [1, 1]


def test_settings_stored_with_the_tokenizer_neither_cut_nor_pad_text(marked_folder):
    [ids] = CorpusTokenizer.load(marked_folder).encode_batch(["a b c d e f g h i j"])
    assert ids.size > 4
    assert ids.size < 64


def test_pad_is_eos_when_the_tokenizer_has_none(marked_folder):
    tokenizer = CorpusTokenizer.load(marked_folder)
    assert tokenizer.pad_id == tokenizer.eos_id


def test_vocabulary_size_counts_added_tokens(marked_folder):
    assert CorpusTokenizer.load(marked_folder).vocab_size == 300 + 5


def test_a_vocabulary_that_holds_markers_as_words_is_refused_not_obeyed(tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "</s>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    loaded = CorpusTokenizer.load(str(tmp_path))
    assert loaded.encode_batch(["a b"])[0].tolist() == [1, 0]  # unknown words are no control tokens
    with pytest.raises(InputError, match="spells the control token '</s>'"):
        loaded.encode_batch(["a </s> a"])


def test_lone_surrogates_are_encoded_as_replacement_characters(tokenizer_folder):
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    broken, repaired = tokenizer.encode_batch(["a\ud83db", "a\ufffdb"])
    assert np.array_equal(broken, repaired)


def test_another_end_of_text_token_is_another_tokenizer(tmp_path, tokenizer_folder):
    raw = Path(tokenizer_folder, "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(raw)
    hashes = set()
    for eos_id in (0, 1, 1):
        (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": eos_id}))
        tokenizer = CorpusTokenizer.load(str(tmp_path))
        assert tokenizer.eos_id == eos_id
        hashes.add(tokenizer.sha256)
    assert len(hashes) == 2


def test_a_folder_without_tokenizer_or_end_of_text_is_refused(tmp_path, tokenizer_folder):
    with pytest.raises(InputError, match=r"no tokenizer\.json"):
        CorpusTokenizer.load(str(tmp_path))
    (tmp_path / "tokenizer.json").write_bytes(Path(tokenizer_folder, "tokenizer.json").read_bytes())
    with pytest.raises(InputError, match="no file names the end-of-text token"):
        CorpusTokenizer.load(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="not a tokenizer"):
        CorpusTokenizer.load(str(tmp_path))
