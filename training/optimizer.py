"""AdamW with decay for matrices only."""

import torch
from torch import nn

from training.config import TrainingConfig
from training.model import PackedCausalLM


def build_optimizer(model: PackedCausalLM, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW over a model, sharded or not; the learning rate is set anew at every step.

    Two groups: the matrices of the layers decay by `weight_decay`; embeddings, output projection, norms and biases
    do not. foreach, because the fused kernel rounds differently from it.

    Source: Loshchilov & Hutter 2019, arXiv:1711.05101.
    """
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    embeddings.add(id(model.lm.get_output_embeddings().weight))
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for parameter in model.parameters():
        has_decay = parameter.ndim >= 2 and id(parameter) not in embeddings
        (decayed if has_decay else plain).append(parameter)
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        foreach=True,
    )
