"""The model: any Hugging Face causal language model, wrapped so that it takes packed rows and returns its summed loss.

Tensors wear their shapes: B rows, T tokens of a row, D hidden size, V vocabulary.
"""

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from infra.errors import InputError
from training import objective
from training.model_limits import ModelLimits, check_fit

_LOGIT_CHANGES = ("final_logit_softcapping", "logits_scaling", "logit_scale")
"""Config entries that change the logits after the projection; the chunked objective knows none of them."""


class PackedCausalLM(nn.Module):
    """A causal language model over packed rows: documents do not see each other, padding carries no loss."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers: the units of sharding, recomputation and compilation."""
        layers: nn.ModuleList = self.lm.get_decoder().layers
        return layers

    def forward(self, input_ids_BT: Tensor, position_ids_BT: Tensor, labels_BT: Tensor) -> Tensor:
        """Sum of the token losses of these rows, a float32 scalar.

        Args:
            input_ids_BT: token ids, int64.
            position_ids_BT: positions, restarting at 0 with every document (padding is a document of its own).
            labels_BT: the target of each position, already shifted; -100 where there is none.
        """
        hidden_BTD = self._hidden(input_ids_BT, position_ids_BT)
        return objective.summed_cross_entropy(hidden_BTD.flatten(0, 1), self._projection_weight(), labels_BT.flatten())

    @torch.no_grad()
    def token_losses(self, input_ids_BT: Tensor, position_ids_BT: Tensor, labels_BT: Tensor) -> Tensor:
        """Loss of each position in nats, 0 where there is no target; shape (B, T), float32. Not for sharded models."""
        hidden_BTD = self._hidden(input_ids_BT, position_ids_BT)
        losses_N = objective.token_losses(hidden_BTD.flatten(0, 1), self._projection_weight(), labels_BT.flatten())
        return losses_N.view_as(labels_BT)

    def _hidden(self, input_ids_BT: Tensor, position_ids_BT: Tensor) -> Tensor:
        # Restarting positions separate documents only without a mask and without a cache; either of them makes
        # transformers fall back to one plain causal mask over the whole row, without a word.
        output = self.lm.get_decoder()(
            input_ids=input_ids_BT, position_ids=position_ids_BT, attention_mask=None, use_cache=False
        )
        hidden_BTD: Tensor = output.last_hidden_state
        return hidden_BTD

    def _projection_weight(self) -> Tensor:
        weight_VD: Tensor = self.lm.get_output_embeddings().weight
        return weight_VD


def build_model(
    *, folder: str | None, architecture: dict[str, Any] | None, seed: int, vocab_size: int, seq_len: int
) -> PackedCausalLM:
    """Build the model in float32 on the CPU: from a folder with weights, else random from an architecture.

    Args:
        folder: Hugging Face folder or hub name; goes before `architecture`.
        architecture: Hugging Face config with `model_type`; an omitted `vocab_size` becomes the tokenizer's.
        seed: seed of random weights: equal seeds, equal weights on every rank.
        vocab_size: entries of the tokenizer.
        seq_len: row capacity of the dataset in tokens.

    Raises:
        InputError: the model does not fit the dataset, or is not a kind that can be trained here.
    """
    config = load_config(folder=folder, architecture=architecture, vocab_size=vocab_size)
    text = config.get_text_config()
    limits = ModelLimits(text.vocab_size, getattr(text, "max_position_embeddings", None))
    check_fit(limits, vocab_size=vocab_size, seq_len=seq_len)
    if changes := [key for key in _LOGIT_CHANGES if getattr(text, key, None) not in (None, 1, 1.0)]:
        _refuse_head(config.model_type, ", ".join(changes))
    lm = _build(config, folder, seed)
    if getattr(lm.get_output_embeddings(), "bias", None) is not None:
        _refuse_head(config.model_type, "a bias")
    # An embedding with a padding index never learns that row, and models whose pad token is the end-of-document token
    # (SmolLM2) would never learn that one. Padding needs no such help: nothing depends on it.
    lm.get_input_embeddings().padding_idx = None
    return PackedCausalLM(lm)


def load_config(*, folder: str | None, architecture: dict[str, Any] | None, vocab_size: int) -> Any:
    """The Hugging Face config of a model folder or an architecture.

    Raises:
        InputError: the folder is no model folder, or the architecture is not one that transformers knows.
    """
    from transformers import AutoConfig

    if folder is not None:
        try:
            return AutoConfig.from_pretrained(folder)
        except (OSError, ValueError) as err:
            raise InputError(f"cannot read a model from {folder}: {err}", hint="check model.path") from err
    try:
        return AutoConfig.for_model(**{"vocab_size": vocab_size, **(architecture or {})})
    except Exception as err:  # a library of its own checks the entries and raises its own kinds
        raise InputError(
            f"model.architecture is not usable: {err}", hint="see the model's Hugging Face config"
        ) from err


def _build(config: Any, folder: str | None, seed: int) -> Any:
    """The transformers model with attention through SDPA: on CPU the one that is both exact under masks and fast."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # in the log of a rank they help nobody
    options: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "sdpa"}
    try:
        if folder is not None:
            return AutoModelForCausalLM.from_pretrained(folder, **options)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return AutoModelForCausalLM.from_config(config, **options)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as err:
        raise InputError(f"cannot build the {config.model_type} model: {err}", hint="check the section model") from err


def _refuse_head(model_type: str, changes: str) -> NoReturn:
    """Refuse a model whose logits are more than hidden @ weightᵀ: its loss would silently be another one."""
    raise InputError(
        f"{model_type} changes its logits after the projection ({changes}), which the objective cannot follow",
        hint="train a model with a plain output projection, such as Qwen3, Llama, SmolLM2 or Mistral",
    )
