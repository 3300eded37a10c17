"""The tensors a run carries from step to step, by name, so that they can be copied, saved and loaded.

`model.<name>` and `exp_avg.<name>`, `exp_avg_sq.<name>` in float32, 12 bytes a parameter; names are those of the
Hugging Face model, tied weights stand once. The optimizer's step is the checkpoint's own.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from training.model import PackedCausalLM

_MOMENTS = ("exp_avg", "exp_avg_sq")


def model_tensors(model: PackedCausalLM) -> dict[str, Tensor]:
    """Parameters and persistent buffers under their saved names; they share memory with the model."""
    parameters = dict(model.lm.named_parameters())
    twins = {name for name, _ in model.lm.named_parameters(remove_duplicate=False)}
    buffers = {name: t for name, t in model.lm.state_dict().items() if name not in twins}
    return {f"model.{name}": tensor.detach() for name, tensor in [*parameters.items(), *buffers.items()]}


def optimizer_tensors(model: PackedCausalLM, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's moments under their saved names; zeros of the same layout where no step was taken yet."""
    tensors = {}
    for name, parameter in model.lm.named_parameters():
        state = optimizer.state[parameter]
        for moment in _MOMENTS:
            if moment not in state:
                state[moment] = torch.zeros_like(parameter)
            tensors[f"{moment}.{name}"] = state[moment]
    return tensors


def set_optimizer_step(model: PackedCausalLM, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Tell Adam how many steps its moments have seen."""
    for parameter in model.lm.parameters():
        optimizer.state[parameter]["step"] = torch.tensor(float(step))


class HostCopy:
    """A private copy of tensors in host memory, in buffers that are used again for the next copy (pinned on CUDA)."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def take(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copy now; the result keeps its values whatever happens to the originals, until the next call."""
        copies: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            local = local_part(tensor)
            if name not in self._buffers:
                pin = local.is_cuda and local.numel() > 0
                self._buffers[name] = torch.empty_like(local, device="cpu", pin_memory=pin)
            self._buffers[name].copy_(local, non_blocking=True)
            copies[name] = _with_layout_of(tensor, self._buffers[name])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return copies


def local_part(tensor: Tensor) -> Tensor:
    """This rank's shard of a distributed tensor; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def all_finite(tensors: dict[str, Tensor]) -> bool:
    """Whether no local value is infinite or NaN. One pass, no temporary copy: minimum and maximum carry NaN along."""
    return all(_finite_extremes(tensor) for tensor in tensors.values())


def _finite_extremes(tensor: Tensor) -> bool:
    local = local_part(tensor)
    if not local.is_floating_point() or local.numel() == 0:
        return True
    return all(bool(torch.isfinite(extreme)) for extreme in _extremes(local))


def _extremes(local: Tensor) -> Iterator[Any]:
    low, high = torch.aminmax(local)
    yield low
    yield high


def _with_layout_of(tensor: Tensor, local: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return local
    # Not DTensor.from_local: it would move a host copy of a shard back to the device of the mesh.
    return DTensor(local, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]
