import random

import numpy as np
import torch

from training.randomness import seed_step, step_seed


def draw(seed: int, step: int, rank: int) -> tuple[float, float, float]:
    seed_step(seed, step, rank)
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_a_step_draws_the_same_numbers_whatever_came_before():
    first = draw(1, 2, 3)
    torch.rand(100)
    assert draw(1, 2, 3) == first


def test_steps_ranks_and_seeds_draw_different_numbers():
    draws = {draw(seed, step, rank) for seed in range(3) for step in range(3) for rank in range(3)}
    assert len(draws) == 27


def test_the_rule_is_the_documented_one():
    assert step_seed(7, 1, 0) == int("0x" + __import__("hashlib").sha256(b"7/1/0").hexdigest()[:16], 16)
