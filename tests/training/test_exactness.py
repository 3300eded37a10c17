import numpy as np
import pytest
import reference_loop
import torch
from training_runs import ARCHITECTURE, TOTAL_ROWS, TOTAL_STEPS, TRAINING, Data, finish, ledger, newest, series, tensors

from training.rundir import RunDir


@pytest.fixture(scope="module")
def reference(data: Data) -> reference_loop.Reference:
    return reference_loop.train(str(data.dataset), ARCHITECTURE, TRAINING, total_rows=TOTAL_ROWS)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((1, {"micro_batch_rows": 4}), id="1 rank x 4 rows"),
        pytest.param((3, {"micro_batch_rows": 2}), id="3 ranks x 2 rows, which do not divide 8"),
        pytest.param(
            (4, {"micro_batch_rows": 1, "shard_group": 2, "activation_checkpointing": "selective"}), id="HSDP 2 x 2"
        ),
    ],
)
def other_layout(request: pytest.FixtureRequest, new_run) -> RunDir:
    ranks, training = request.param
    return finish(new_run(training=training, checkpoint={}), ranks=ranks)


def test_another_layout_of_ranks_and_micro_batches_changes_nothing_but_rounding(two_ranks, other_layout):
    np.testing.assert_allclose(series(other_layout, "loss"), series(two_ranks, "loss"), rtol=1e-5)
    np.testing.assert_allclose(series(other_layout, "grad_norm"), series(two_ranks, "grad_norm"), rtol=1e-4)
    assert series(other_layout, "learning_rate") == series(two_ranks, "learning_rate")
    assert series(other_layout, "tokens") == series(two_ranks, "tokens")
    assert ledger(other_layout) == ledger(two_ranks)
    ours, theirs = tensors(newest(other_layout)[0]), tensors(newest(two_ranks)[0])
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)


def test_the_run_equals_a_plain_loop_over_single_documents_with_full_logits(two_ranks, reference):
    np.testing.assert_allclose(series(two_ranks, "loss"), reference.losses, rtol=1e-5)
    np.testing.assert_allclose(series(two_ranks, "grad_norm"), reference.grad_norms, rtol=1e-4)
    trained = tensors(newest(two_ranks)[0])
    for name, weight in reference.weights.items():
        torch.testing.assert_close(trained[f"model.{name}"], weight, rtol=1e-3, atol=1e-4)


def test_the_last_step_takes_what_remains(two_ranks):
    assert len(series(two_ranks, "step")) == TOTAL_STEPS
    assert series(two_ranks, "position") == [*range(8, 89, 8), TOTAL_ROWS]


def test_the_loss_falls(two_ranks):
    losses = series(two_ranks, "loss")
    assert losses[-1] < losses[0] - 0.5


def test_a_finished_run_holds_its_last_step_as_a_committed_checkpoint(two_ranks):
    manifest = newest(two_ranks)[1]
    assert (manifest.step, manifest.position, manifest.healthy) == (TOTAL_STEPS, TOTAL_ROWS, True)
    assert manifest.ledger_head == ledger(two_ranks)[-1][2]
    assert [e["step"] for e in two_ranks.events("checkpoint_committed")] == [4, 8, 12]


def test_a_step_says_where_its_time_went(two_ranks):
    for row in two_ranks.metrics():
        parts = [row[k] for k in ("input_wait_s", "compute_s", "comm_wait_s", "checkpoint_stall_s")]
        assert min(parts) >= 0 and sum(parts) <= row["step_s"] + 1e-4
