import pytest

from tasks import hang
from tasks.config import RecoveryConfig
from tasks.hang import HangDetector
from training.rundir import Heartbeat

CONFIG = RecoveryConfig(hang_factor=10, hang_floor_s=60, start_limit_s=600)


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now_s = 0.0

        def monotonic(self):
            return self.now_s

    moved = Clock()
    monkeypatch.setattr(hang, "time", moved)
    return moved


@pytest.fixture
def beat(run):
    def write(step, phase="training", rank=0):
        file = run.heartbeat(rank)
        file.parent.mkdir(exist_ok=True)
        sign = Heartbeat(rank=rank, pid=7, step=step, phase=phase, monotonic_s=0, time_s=0)
        file.write_text(sign.model_dump_json())

    return write


def test_steps_are_life_and_silence_beyond_the_floor_is_a_hang(run, beat, clock):
    detector = HangDetector(run, CONFIG)
    for step in range(5):
        beat(step)
        assert not detector.hangs()
        clock.now_s += 50
    assert not detector.hangs()
    clock.now_s += 11
    assert detector.hangs()
    assert detector.limit_s == 60


def test_slow_steps_raise_the_limit(run, beat, clock, log_steps):
    log_steps(1, 5)  # 0.5 s each
    run.metrics_file.write_text(run.metrics_file.read_text().replace('"step_s": 0.5', '"step_s": 30.0'))
    beat(5)
    detector = HangDetector(run, CONFIG)
    assert not detector.hangs()
    clock.now_s = 299
    assert not detector.hangs()
    clock.now_s = 301
    assert detector.hangs()
    assert detector.limit_s == 300


@pytest.mark.parametrize("phase", ["starting", "loading a checkpoint", "saving"])
def test_loading_and_saving_have_a_limit_of_their_own(run, beat, clock, phase):
    beat(5, phase)
    detector = HangDetector(run, CONFIG)
    assert not detector.hangs()
    clock.now_s = 599
    assert not detector.hangs()
    clock.now_s = 601
    assert detector.hangs()
