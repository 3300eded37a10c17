"""The training objective: summed next-token cross-entropy that never holds the logits of a whole sequence.

Tensors wear their shapes: N tokens, D hidden size, V vocabulary, C tokens of one chunk.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED_LABEL = -100
"""Label of a position without a target."""
_CHUNK_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 26}
"""Logits held at a time. On CPU 2 Mi float32 values (8 MiB) stay in the cache: the fastest of 0.5 to 16 Mi. A GPU wants
large products; 64 Mi are 256 MiB."""
_MIN_CHUNK_TOKENS = 128
"""Below this the matrix products become too thin to be efficient, whatever the vocabulary."""


def summed_cross_entropy(hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> Tensor:
    """Sum of the token losses -log softmax(hidden @ weightᵀ)[label] over all positions with a target.

    Loss and gradients are computed together, chunk by chunk, in the forward pass, so that nothing is recomputed and
    only one chunk of logits exists at a time; backward only scales. Logits are products in the dtype of the inputs,
    everything after them is float32. Backward may run once.

    Args:
        hidden_ND: last hidden states, shape (N, D).
        weight_VD: vocabulary projection, shape (V, D), same dtype.
        labels_N: target of each position, IGNORED_LABEL where there is none, shape (N,), int64.

    Returns:
        A float32 scalar.

    Source: the fused linear cross-entropy of Liger-Kernel (Hsu et al. 2024, arXiv:2410.10989).
    """
    loss: Tensor = _SummedCrossEntropy.apply(hidden_ND, weight_VD, labels_N)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def token_losses(hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> Tensor:
    """Loss of each position in nats, 0 where there is no target; shape (N,), float32; no gradients."""
    losses_N = torch.empty(labels_N.shape, dtype=torch.float32, device=hidden_ND.device)
    chunks = _Chunks(hidden_ND, weight_VD)
    for rows in chunks:
        _, losses_N[rows] = chunks.log_probs_and_losses(rows, labels_N)
    return losses_N


class _Chunks:
    """The chunks of a sequence, and buffers for the logits of one that are used again for the next."""

    def __init__(self, hidden_ND: Tensor, weight_VD: Tensor) -> None:
        self._hidden_ND, self._weight_VD = hidden_ND, weight_VD
        num_tokens, vocab_size = len(hidden_ND), len(weight_VD)
        budget = _CHUNK_ELEMENTS["cpu" if hidden_ND.device.type == "cpu" else "cuda"]
        self._chunk_tokens = min(num_tokens, max(_MIN_CHUNK_TOKENS, budget // vocab_size))
        shape = (self._chunk_tokens, vocab_size)
        self._logits_CV = hidden_ND.new_empty(shape)
        self._log_probs_CV = hidden_ND.new_empty(shape, dtype=torch.float32)

    def __iter__(self) -> Any:
        for start in range(0, len(self._hidden_ND), max(1, self._chunk_tokens)):
            yield slice(start, min(start + self._chunk_tokens, len(self._hidden_ND)))

    def log_probs_and_losses(self, rows: slice, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (C, V), in a buffer that the next chunk overwrites, and token losses (C,)."""
        hidden_CD = self._hidden_ND[rows]
        logits_CV = torch.mm(hidden_CD, self._weight_VD.t(), out=self._logits_CV[: len(hidden_CD)])
        log_probs_CV = torch.log_softmax(
            logits_CV, dim=-1, dtype=torch.float32, out=self._log_probs_CV[: len(hidden_CD)]
        )
        labels_C = labels_N[rows]
        target_C = log_probs_CV.gather(1, labels_C.clamp_min(0).unsqueeze(1)).squeeze(1)
        return log_probs_CV, torch.where(labels_C == IGNORED_LABEL, 0.0, -target_C)


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> Tensor:
        needs_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        loss = torch.zeros((), dtype=torch.float64, device=hidden_ND.device)
        if needs_grad:
            grad_hidden_ND = torch.empty_like(hidden_ND)
            grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32)
        chunks = _Chunks(hidden_ND, weight_VD)
        for rows in chunks:
            log_probs_CV, losses_C = chunks.log_probs_and_losses(rows, labels_N)
            loss += losses_C.sum(dtype=torch.float64)
            if needs_grad:
                grad_logits_CV = _grad_logits_(log_probs_CV, labels_N[rows]).to(hidden_ND.dtype)
                # A position without a target must add nothing. Its rows of hidden and grad_hidden are cleared instead
                # of its row of grad_logits, which is V / D times wider.
                has_target_C1 = (labels_N[rows] != IGNORED_LABEL).unsqueeze(1)
                torch.mm(grad_logits_CV, weight_VD, out=grad_hidden_ND[rows])
                grad_hidden_ND[rows].mul_(has_target_C1)
                _add_product_(grad_weight_VD, grad_logits_CV.t(), hidden_ND[rows] * has_target_C1)
        if needs_grad:
            ctx.save_for_backward(grad_hidden_ND, grad_weight_VD)
        return loss.float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_hidden_ND, grad_weight_VD = ctx.saved_tensors
        return grad_hidden_ND.mul_(grad_loss), grad_weight_VD.mul_(grad_loss), None


def _grad_logits_(log_probs_CV: Tensor, labels_C: Tensor) -> Tensor:
    """Turn log-probabilities into the gradient of the token losses with respect to the logits, in place."""
    grad_logits_CV = log_probs_CV.exp_()
    grad_logits_CV.scatter_add_(
        1, labels_C.clamp_min(0).unsqueeze(1), grad_logits_CV.new_full((len(labels_C), 1), -1.0)
    )
    return grad_logits_CV


def _add_product_(total_VD: Tensor, left_VC: Tensor, right_CD: Tensor) -> None:
    """total += left @ right, summed in float32 whatever the dtype of the factors."""
    if left_VC.dtype == total_VD.dtype:
        total_VD.addmm_(left_VC, right_CD)
    else:
        total_VD.add_(left_VC @ right_CD)
