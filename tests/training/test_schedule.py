import math

import pytest

from training.config import TrainingConfig
from training.schedule import learning_rate


def rates(total_steps: int = 20, **options) -> list[float]:
    config = TrainingConfig(**{"learning_rate": 1.0, "warmup_steps": 4, "min_learning_rate_ratio": 0.1, **options})
    return [learning_rate(step, total_steps=total_steps, config=config) for step in range(1, total_steps + 1)]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "wsd"])
def test_warm_up_rises_linearly_to_the_peak(schedule):
    assert rates(schedule=schedule)[:4] == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd"])
def test_the_last_step_uses_the_floor_and_none_before_it_rises(schedule):
    after = rates(schedule=schedule)[3:]
    assert after[-1] == pytest.approx(0.1)
    assert after == sorted(after, reverse=True)


def test_constant_stays_at_the_peak():
    assert set(rates(schedule="constant")[3:]) == {1.0}


def test_cosine_is_halfway_down_in_the_middle():
    assert rates(schedule="cosine")[11] == pytest.approx(0.55)


def test_wsd_is_stable_until_its_decay_and_falls_with_the_square_root():
    values = rates(schedule="wsd", decay_fraction=0.25)
    assert set(values[3:15]) == {1.0}
    assert values[15] == pytest.approx(0.1 + 0.9 * (1 - math.sqrt(1 / 5)))


def test_without_warm_up_the_first_step_already_follows_the_shape():
    assert rates(schedule="linear", warmup_steps=0, total_steps=2)[0] == pytest.approx(0.55)


def test_a_run_shorter_than_its_warm_up_never_reaches_the_peak():
    assert rates(total_steps=3, warmup_steps=6) == [pytest.approx(n / 6) for n in (1, 2, 3)]
