"""Stateless randomness: no generator state is saved, because none outlives a step.

Before each step every generator of a rank is seeded with the first 8 bytes of SHA-256("seed/step/rank"), big
endian; NumPy takes the lower 32 bits. Ranks and steps therefore draw independent numbers, and a step repeated
after a resume draws those it drew before. With another number of ranks the streams are other ones, by the same rule.
"""

import hashlib
import random

import numpy as np
import torch


def step_seed(seed: int, step: int, rank: int) -> int:
    """The 64-bit seed of one step of one rank."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()[:8], "big")


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seed Python's, NumPy's and torch's generators (all devices) for one step."""
    value = step_seed(seed, step, rank)
    random.seed(value)
    np.random.seed(value & 0xFFFF_FFFF)
    torch.manual_seed(value)
