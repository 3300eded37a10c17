"""Processes, devices and sharding: FSDP2 over all ranks, or HSDP when `shard_group` is set."""

import os
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed._composable.checkpoint_activation import checkpoint
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from infra.errors import InputError
from training.config import TrainingConfig
from training.model import PackedCausalLM

SMALL_MODEL_PARAMETERS = 500_000_000
"""Up to this size (2 GB in float32) a rank keeps the whole model and its summed gradient during a step, which saves
a gather and a reduction in every micro-batch. Summing locally first rounds differently, so the rule knows nothing but
the model: a run resumed elsewhere takes the same way."""


@dataclass(frozen=True)
class World:
    """This process among its peers, as torchrun placed it."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is global rank 0, which writes for all."""
        return self.rank == 0


def join_world(config: TrainingConfig) -> World:
    """Join the process group that torchrun announced in the environment: gloo on CPU, NCCL on CUDA.

    Every collective gives up after `collective_timeout_s`. On CPU the cores are shared out between the local ranks.
    """
    rank, size, local_rank, local_size = (
        int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    timeout = timedelta(seconds=config.collective_timeout_s)
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", timeout=timeout, device_id=device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(config.threads_per_process or max(1, (os.cpu_count() or 1) // local_size))
        # Free on CPU; filling fresh memory would not be.
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        dist.init_process_group("gloo", timeout=timeout)
    return World(rank, size, local_rank, local_size, device)


def make_mesh(world: World, shard_group: int | None) -> DeviceMesh:
    """The device mesh: ("shard",) for FSDP, ("replicate", "shard") when copies are kept in groups.

    Raises:
        InputError: the ranks cannot be divided into groups of `shard_group`.
    """
    if shard_group is None or shard_group == world.size:
        return init_device_mesh(world.device.type, (world.size,), mesh_dim_names=("shard",))
    if world.size % shard_group:
        raise InputError(
            f"{world.size} ranks cannot be divided into groups of training.shard_group = {shard_group}",
            hint=f"choose a divisor of {world.size}, or leave shard_group out",
        )
    shape = (world.size // shard_group, shard_group)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("replicate", "shard"))


def num_replicas(mesh: DeviceMesh) -> int:
    """How many copies of each parameter the mesh holds."""
    return mesh.size(0) if mesh.ndim == 2 else 1


def shard_model(model: PackedCausalLM, config: TrainingConfig, mesh: DeviceMesh) -> None:
    """Shard a model in place, one FSDP unit per decoder layer and one for the rest.

    Parameters stay float32; forward and backward run in `compute_dtype`; gradients are reduced in float32 and
    summed, not averaged, because the loss is already divided by the targets of the whole global batch.
    """
    compute = None if config.compute_dtype == "float32" else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    reshard = not is_small(model)
    every = {"none": 0, "selective": 2, "full": 1}[config.activation_checkpointing]
    for index, layer in enumerate(model.layers):
        if every and index % every == 0:
            checkpoint(layer)
        if config.compile:
            layer.compile()
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum


def is_small(model: PackedCausalLM) -> bool:
    """Whether the model follows the rule of SMALL_MODEL_PARAMETERS."""
    return sum(p.numel() for p in model.parameters()) <= SMALL_MODEL_PARAMETERS
