from infra import storage
from tasks.attempt_end import settle
from training.exits import ExitReason, ExitRecord

TORCHRUN_LOG = """\
============================================================
infra.launch.rank FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:00
  host      : here
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 41)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : here
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 42)
============================================================
"""


def test_the_attempts_own_word_stands(run, add_attempt):
    attempt = add_attempt(ExitReason.DIVERGED, 12)
    (run.attempt(1) / "torchrun.log").write_text(TORCHRUN_LOG)
    assert settle(run, attempt, found="gone").reason is ExitReason.DIVERGED


def test_a_rank_that_was_killed_is_named_with_its_signal(run, add_attempt, log_steps):
    attempt = add_attempt(None)
    log_steps(1, 9)
    (run.attempt(1) / "torchrun.log").write_text(TORCHRUN_LOG)
    record = settle(run, attempt, found="gone")
    assert (record.reason, record.rank, record.step) == (ExitReason.KILLED, 1, 9)
    assert record.message == "rank 1 was ended by SIGKILL"


def test_a_peer_knows_the_step_and_torchrun_the_cause(run, add_attempt):
    attempt = add_attempt(None)
    peer = ExitRecord(reason=ExitReason.COLLECTIVE_TIMEOUT, step=11, rank=0, host="here", message="lost", time_s=5.0)
    storage.write_json(str(run.attempt(1) / "exit-rank0.json"), peer.model_dump(mode="json"))
    (run.attempt(1) / "torchrun.log").write_text(TORCHRUN_LOG)
    record = settle(run, attempt, found="gone")
    assert (record.reason, record.rank, record.step) == (ExitReason.KILLED, 1, 11)


def test_without_any_word_what_was_found_is_recorded_once(run, add_attempt):
    attempt = add_attempt(None)
    assert settle(run, attempt, found="the processes are gone").message == "the processes are gone"
    assert settle(run, attempt, found="something else").message == "the processes are gone"
