import pytest
from training_runs import finish, newest, same_tensors, series, tensors

from training.exits import ExitReason


@pytest.mark.parametrize("fault", ["nan-loss", "inf-gradient"])
def test_a_non_finite_value_on_one_rank_stops_all_before_any_weight_changes(fault, new_run, two_ranks):
    run = finish(new_run(), ranks=2, disturb=f"{fault}@5", expect="diverged")  # it compares the weights itself
    record = run.exit_record(1)
    assert (record.rank, record.step) == (1 if fault == "nan-loss" else 0, 4)
    assert series(run, "loss") == series(two_ranks, "loss")[:4]
    assert newest(run)[1].step == 4
    assert same_tensors(newest(run)[0], two_ranks.checkpoint(4))


def test_a_failing_rank_is_named_as_the_cause_and_its_pending_save_still_commits(new_run):
    run = finish(new_run(), ranks=2, disturb="raise@5", expect="internal_error")
    record = run.exit_record(1)
    assert (record.rank, record.step, record.message) == (1, 4, "ValueError: a bug on rank 1")
    assert "a bug on rank 1" in record.exception
    assert newest(run)[1].step == 4
    assert ExitReason.INTERNAL_ERROR not in {r.reason for r in run.peer_exit_records(1)}


def test_an_attempt_that_was_replaced_commits_nothing_and_ends(new_run):
    run = finish(new_run(), ranks=2, disturb="newer-attempt@6", expect="storage_error")
    assert "attempt 99" in run.exit_record(1).message
    assert [e["step"] for e in run.events("checkpoint_committed")] == [4]
    assert newest(run)[1].step == 4


def test_a_model_too_small_for_the_data_is_a_config_error_before_any_step(new_run):
    run = finish(new_run(architecture={"max_position_embeddings": 16}), ranks=1, expect="config_error")
    record = run.exit_record(1)
    assert "32 tokens" in record.message and "16 positions" in record.message
    assert not run.metrics_file.exists()


def test_bfloat16_keeps_float32_master_weights_and_stays_close(new_run, two_ranks):
    run = finish(new_run(training={"compute_dtype": "bfloat16"}), ranks=1)
    assert {str(t.dtype) for t in tensors(newest(run)[0]).values()} == {"torch.float32"}
    assert series(run, "loss")[-1] == pytest.approx(series(two_ranks, "loss")[-1], rel=0.02)
