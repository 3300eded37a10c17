import shutil

import numpy as np
import psutil
import pytest
from training_runs import TOTAL_STEPS, finish, launch, ledger, newest, same_tensors, series, wait_until

from training.rundir import RunDir


@pytest.fixture(scope="module")
def killed_twice(with_dropout) -> RunDir:
    """A rank is killed, the run resumes, then the torchrun agent is killed, the run resumes and ends."""
    run = finish(with_dropout(), ranks=2, disturb="kill@7", expect=None)
    launched = launch(run, ranks=2, attempt=2, disturb="kill-agent@11")
    try:
        launched.wait()
        pids = [beat.pid for beat in run.heartbeats()]
        wait_until(lambda: not any(map(_alive, pids)))
    finally:
        launched.kill()
    return finish(run, ranks=2, attempt=3)


@pytest.fixture(scope="module")
def stopped_twice(with_dropout) -> RunDir:
    """One rank gets SIGTERM, the run resumes, then torchrun gets it, the run resumes and ends."""
    run = finish(with_dropout(), ranks=2, disturb="stop-one-rank@3", expect="preempted")
    run = finish(run, ranks=2, attempt=2, disturb="stop-agent@6", expect="preempted")
    return finish(run, ranks=2, attempt=3)


@pytest.fixture(scope="module")
def slow_storage(with_dropout) -> RunDir:
    """The save of step 4 reaches the disk only after step 9."""
    return finish(with_dropout(), ranks=2, disturb="slow-save@10")


@pytest.mark.parametrize("disturbed", ["killed_twice", "stopped_twice", "slow_storage"])
def test_a_disturbed_run_cannot_be_told_from_an_undisturbed_one(disturbed, undisturbed, request):
    run = request.getfixturevalue(disturbed)
    for key in ("step", "loss", "grad_norm", "learning_rate", "tokens", "position"):
        assert series(run, key) == series(undisturbed, key), key
    assert ledger(run) == ledger(undisturbed)
    assert same_tensors(newest(run)[0], newest(undisturbed)[0])


def test_dropout_was_at_work(undisturbed, two_ranks):
    assert series(undisturbed, "loss")[0] != series(two_ranks, "loss")[0]


def test_a_resumed_run_continues_from_its_newest_checkpoint(killed_twice):
    assert [(e["attempt"], e["step"], e["position"]) for e in killed_twice.events("resumed")] == [
        (2, 4, 32),
        (3, 8, 64),
    ]
    assert [e["step"] for e in killed_twice.events("first_step_done")] == [1, 5, 9]


def test_peers_of_a_killed_rank_say_that_it_went_without_a_word(killed_twice):
    assert [(r.reason, r.rank, r.step) for r in killed_twice.peer_exit_records(1)] == [("killed", 0, 6)]


def test_a_stop_request_at_one_rank_stops_all_at_the_same_step_with_a_checkpoint(stopped_twice):
    assert [stopped_twice.exit_record(n).step for n in (1, 2, 3)] == [3, 6, TOTAL_STEPS]
    assert [e["step"] for e in stopped_twice.events("resumed")] == [3, 6]


def test_a_checkpoint_holds_the_state_of_its_step_however_slow_the_storage_is(slow_storage, undisturbed):
    assert same_tensors(slow_storage.checkpoint(4), undisturbed.checkpoint(4))
    assert [e["step"] for e in slow_storage.events("checkpoint_skipped")] == [8]
    assert [e["step"] for e in slow_storage.events("checkpoint_committed")] == [4, TOTAL_STEPS]


def test_another_number_of_ranks_goes_on_with_the_same_batches_past_damaged_checkpoints(two_ranks, tmp_path):
    run = RunDir(tmp_path / "run")
    shutil.copytree(two_ranks.path, run.path)
    victim = next(run.checkpoint(12).glob("*.distcp"))
    victim.write_bytes(victim.read_bytes()[:-1])
    half_written = run.checkpoint(20)
    half_written.mkdir()

    finish(run, ranks=3, attempt=2)

    rejected = {e["step"]: e["reason"] for e in run.events("checkpoint_rejected")}
    assert rejected.keys() == {12, 20} and victim.name in rejected[12]
    assert [e["step"] for e in run.events("resumed")] == [8]
    assert ledger(run) == ledger(two_ranks)
    np.testing.assert_allclose(series(run, "loss"), series(two_ranks, "loss"), rtol=1e-5)
    assert half_written.is_dir(), "what cannot be judged is not deleted"
    assert (run.checkpoints / ".step-00000012.replaced-by-0002" / victim.name).is_file()


def _alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
