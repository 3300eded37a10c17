import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from infra import storage
from infra.errors import InputError

EOS_TOKEN = "<|endoftext|>"  # noqa: S105
PAD_TOKEN = "<|pad|>"  # noqa: S105
_SURROGATES = re.compile("[\ud800-\udfff]")
# Models add markup as ordinary tokens too (<think>, <|fim_prefix|>); added runs of spaces or words are plain text.
_MARKER = re.compile(r"^[<\[].*[>\]]$", re.DOTALL)
_MARKER_RULE = "markers-as-text-1"


def replace_surrogates(text: str) -> tuple[str, int]:
    """Put U+FFFD for every lone UTF-16 surrogate, which no encoder accepts; also tell how many there were."""
    return _SURROGATES.subn("\ufffd", text)


def train_byte_bpe(texts: Iterable[str], folder: Path, *, vocab_size: int) -> None:
    """Train a byte-level BPE and write a folder that `transformers.AutoTokenizer` loads.

    Deterministic. The folder is complete or absent.

    Args:
        texts: documents to learn merges from.
        folder: where to write; must not exist.
        vocab_size: entries at most, the 256 bytes and two control tokens included.

    Raises:
        InputError: the folder exists, or `vocab_size` cannot hold the bytes.
    """
    specials = [EOS_TOKEN, PAD_TOKEN]
    if vocab_size < 256 + len(specials):
        raise InputError(f"vocab_size is {vocab_size}: a byte-level tokenizer needs at least {256 + len(specials)}")
    if folder.exists():
        raise InputError(f"{folder} exists", hint="delete it to train the tokenizer again")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((replace_surrogates(text)[0] for text in texts), trainer)
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS_TOKEN,
        "pad_token": PAD_TOKEN,
        "clean_up_tokenization_spaces": False,
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        storage.write_text(str(temporary / "tokenizer.json"), tokenizer.to_str(pretty=True))
        storage.write_json(str(temporary / "tokenizer_config.json"), tokenizer_config)
        temporary.chmod(0o755)
        temporary.rename(folder)
        storage.fsync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@dataclass(frozen=True)
class CorpusTokenizer:
    """Exactly the ids of a Hugging Face tokenizer, except that text never becomes a control token.

    Added tokens that look like markup (`<|endoftext|>`, `<think>`, `[INST]`) are control tokens, whether the
    tokenizer calls them special or not: in corpus text they are spelled out like any other characters.
    """

    eos_id: int
    pad_id: int
    vocab_size: int
    """Largest id it can emit plus one, added tokens included."""
    sha256: str
    """Identity: the content of tokenizer.json, the ids above and the marker rule."""
    _tokenizer: Tokenizer
    _is_control: NDArray[np.bool_]

    @classmethod
    def load(cls, folder: str) -> "CorpusTokenizer":
        """Read a Hugging Face folder (path or URL).

        Raises:
            InputError: the folder holds no tokenizer.json, or nothing in it names the end-of-text token.
        """
        file = storage.join(folder, "tokenizer.json")
        raw = _read(file)
        if raw is None:
            raise InputError(
                f"{folder} holds no tokenizer.json",
                hint="point to a Hugging Face folder with a fast tokenizer (save_pretrained writes one)",
            )
        try:
            spec = json.loads(raw)
            unknown = _mark_markers_special(spec)
            tokenizer = Tokenizer.from_str(json.dumps(spec))
        except Exception as err:  # the library raises bare Exception for a malformed file
            raise InputError(f"{file}: not a tokenizer this version reads ({err})") from err
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        eos_id, pad_id = _control_ids(folder, tokenizer)
        is_control = np.zeros(max(vocab.values()) + 1, dtype=np.bool_)
        for token_id, token in tokenizer.get_added_tokens_decoder().items():
            is_control[token_id] = token.special and token.content != unknown
        is_control[eos_id] = True
        identity = f"eos={eos_id} pad={pad_id} {_MARKER_RULE}\n".encode()
        sha256 = hashlib.sha256(identity + raw).hexdigest()
        return cls(eos_id, pad_id, is_control.size, sha256, tokenizer, is_control)

    def encode_batch(self, texts: Sequence[str]) -> list[NDArray[np.uint32]]:
        """Token ids of each text, without BOS or EOS; uses all threads of the process.

        A lone surrogate is encoded as U+FFFD.

        Raises:
            InputError: a text spells a control token and the tokenizer has no other ids for it (some
                vocabularies hold their markers as ordinary words).
        """
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except TypeError:
            whole = [replace_surrogates(text)[0] for text in texts]
            encodings = self._tokenizer.encode_batch_fast(whole, add_special_tokens=False)
        arrays = [np.asarray(encoding.ids, dtype=np.uint32) for encoding in encodings]
        for text, ids in zip(texts, arrays, strict=True):
            if self._is_control[ids].any():
                token = self.token(int(ids[self._is_control[ids]][0]))
                raise InputError(
                    f"the text {text[:60]!r}… spells the control token {token!r}, "
                    "and this tokenizer cannot write it as plain text",
                    hint="remove the marker from the text, or use a byte-level tokenizer",
                )
        return arrays

    def token(self, token_id: int) -> str:
        """The vocabulary entry of an id."""
        return str(self._tokenizer.id_to_token(token_id))

    def decode(self, ids: NDArray[np.integer[Any]]) -> str:
        """The text of ids, control tokens spelled out."""
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False))


def _mark_markers_special(spec: dict[str, Any]) -> str | None:
    """Make markup tokens special, so that `encode_special_tokens` covers them; return the unknown token."""
    for token in spec.get("added_tokens") or []:
        token["special"] = token["special"] or _MARKER.match(token["content"]) is not None
    model = spec["model"]
    if isinstance(model.get("unk_id"), int):
        return str(model["vocab"][model["unk_id"]][0])
    unknown = model.get("unk_token")
    return unknown if isinstance(unknown, str) else None


def _control_ids(folder: str, tokenizer: Tokenizer) -> tuple[int, int]:
    """End-of-text and padding id: as the tokenizer's own files say, else as the model's config says."""
    found: dict[str, int] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json", "config.json", "generation_config.json"):
        raw = _read(storage.join(folder, name))
        values = json.loads(raw) if raw is not None else {}
        for kind in ("eos", "pad"):
            token = values.get(f"{kind}_token")
            token = token.get("content") if isinstance(token, dict) else token
            token_id = tokenizer.token_to_id(token) if isinstance(token, str) else values.get(f"{kind}_token_id")
            token_id = token_id[0] if isinstance(token_id, list) and token_id else token_id
            if isinstance(token_id, int) and tokenizer.id_to_token(token_id) is not None:
                found.setdefault(kind, token_id)
    if "eos" not in found:
        raise InputError(
            f"{folder}: no file names the end-of-text token",
            hint="set eos_token in tokenizer_config.json, or eos_token_id in config.json",
        )
    return found["eos"], found.get("pad", found["eos"])


def _read(url: str) -> bytes | None:
    try:
        with storage.open_read(url) as file:
            return file.read()
    except FileNotFoundError:
        return None
