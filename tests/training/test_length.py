import pytest

from training.config import TrainingConfig
from training.length import plan_steps


@pytest.mark.parametrize(
    ("options", "total_rows", "total_steps"),
    [
        pytest.param({}, 100, 13, id="one epoch by default"),
        pytest.param({"epochs": 3}, 300, 38, id="epochs"),
        pytest.param({"total_tokens": 1000}, 63, 8, id="tokens are rounded up to rows"),
        pytest.param({"total_tokens": 16 * 16}, 16, 2, id="whole steps"),
    ],
)
def test_a_run_covers_what_was_asked_for_and_its_last_step_takes_the_rest(options, total_rows, total_steps):
    length = plan_steps(TrainingConfig(global_batch_rows=8, **options), num_rows=100, seq_len=16)
    assert (length.total_rows, length.total_steps, length.tokens_per_step) == (total_rows, total_steps, 128)


def test_the_reference_job_takes_31790_steps():
    config = TrainingConfig(total_tokens="100B", global_batch_rows=384)
    assert plan_steps(config, num_rows=1, seq_len=8192).total_steps == 31_790
