"""Training as one would write it down first: one process, one document at a time, full logits, plain torch."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM

from packing.dataset import PackedDataset
from packing.order import sequence_at


@dataclass
class Reference:
    losses: list[float]
    grad_norms: list[float]
    weights: dict[str, torch.Tensor]


def train(dataset: str, architecture: dict[str, Any], config: dict[str, Any], *, total_rows: int) -> Reference:
    data = PackedDataset(dataset)
    torch.manual_seed(config["seed"])
    lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(**architecture), dtype=torch.float32)
    matrices = [p for n, p in lm.named_parameters() if p.ndim == 2 and "embed" not in n and "lm_head" not in n]
    others = [p for n, p in lm.named_parameters() if p.ndim == 1 or "embed" in n or "lm_head" in n]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    batch_rows = config["global_batch_rows"]
    num_steps = math.ceil(total_rows / batch_rows)
    losses, grad_norms = [], []
    for step in range(1, num_steps + 1):
        stream = np.arange((step - 1) * batch_rows, min(step * batch_rows, total_rows))
        token_losses = []
        for document in documents(data, sequence_at(stream, num_rows=data.num_rows, seed=config["seed"])):
            logits = lm(input_ids=document[None], use_cache=False).logits[0]
            token_losses.append(cross_entropy(logits[:-1], document[1:], reduction="none"))
        loss = torch.cat(token_losses).mean()
        loss.backward()
        grad_norms.append(torch.nn.utils.clip_grad_norm_(lm.parameters(), 1.0).item())
        for group in optimizer.param_groups:
            group["lr"] = rate(step, num_steps, config)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Reference(losses, grad_norms, {n: p.detach() for n, p in lm.named_parameters()})


def documents(data: PackedDataset, sequence_ids: Any) -> list[torch.Tensor]:
    rows = data.rows(sequence_ids)
    found = []
    for ids, lengths in zip(rows.input_ids, rows.document_lengths, strict=True):
        ends = np.cumsum(lengths)
        found += [torch.from_numpy(ids[end - n : end]) for end, n in zip(ends, lengths, strict=True) if n > 1]
    return found


def rate(step: int, num_steps: int, config: dict[str, Any]) -> float:
    peak, warmup = config["learning_rate"], config["warmup_steps"]
    if step <= warmup:
        return peak * step / warmup
    progress = (step - warmup) / (num_steps - warmup)
    return peak * (0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)
