import os
import signal
import socket
import uuid
from pathlib import Path

import pytest

from infra.config import ClusterConfig
from infra.launch import local
from infra.launch.processes import end_marked, is_alive, marked
from infra.storage import read_json

TWO = ClusterConfig(processes_per_node=2)
WORKER = """
import json, os, signal, sys
from pathlib import Path
run = Path(sys.argv[1])
rank, attempt = os.environ["RANK"], os.environ["STAYER_ATTEMPT_NUMBER"]

def leave(*_):
    (run / f"saved-{rank}").touch()
    sys.exit(10)

signal.signal(signal.SIGTERM, signal.SIG_IGN if (run / f"stubborn-{rank}").exists() else leave)
names = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "STAYER_ATTEMPT", "DO_NOT_TRACK")
facts = {name: os.environ[name] for name in names} | {"pid": os.getpid(), "name": __name__}
os.write(1, b"from below Python\\n")
print("said by rank", rank)
print("complained by rank", rank, file=sys.stderr)
ready = run / f"ready-{attempt}-{rank}.json"
ready.with_suffix(".tmp").write_text(json.dumps(facts))
ready.with_suffix(".tmp").rename(ready)
while True:
    signal.pause()
"""


@pytest.fixture
def attempts(tmp_path, monkeypatch):
    """Start attempts of a small worker; whatever is left of them is ended with the test."""
    (tmp_path / "small_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])]))
    marks = []

    def start(run_dir, number=1, cluster=TWO):
        run_dir.mkdir(exist_ok=True)
        marks.append(f"{run_dir.name}:{number}:{uuid.uuid4().hex}")
        launched = local.launch(run_dir, number=number, mark=marks[-1], cluster=cluster, module="small_worker")
        return launched, marks[-1]

    yield start
    for mark in marks:
        end_marked(mark, grace_s=0)


def _facts(run_dir, until, attempt=1):
    files = [run_dir / f"ready-{attempt}-{rank}.json" for rank in (0, 1)]
    until(lambda: all(file.exists() for file in files))
    return [read_json(str(file)) for file in files]


def test_attempts_started_together_each_get_a_port_and_every_rank_its_log(attempts, tmp_path, until):
    with socket.socket() as busy:  # torchrun's usual port
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        busy.bind(("127.0.0.1", 29500))
        busy.listen()
        _, mark_a = attempts(tmp_path / "a", number=3)
        attempts(tmp_path / "b")
        facts_a, facts_b = _facts(tmp_path / "a", until, attempt=3), _facts(tmp_path / "b", until)
    assert facts_a[0]["MASTER_PORT"] == facts_a[1]["MASTER_PORT"] != facts_b[0]["MASTER_PORT"]
    for fact in facts_a:
        assert fact["WORLD_SIZE"] == "2"
        assert fact["MASTER_ADDR"] == "127.0.0.1"
        assert fact["STAYER_ATTEMPT"] == mark_a
        assert fact["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "1")
        assert fact["name"] == "__main__"
    for rank in (0, 1):
        log = (tmp_path / "a" / "attempts" / "0003" / f"rank-{rank}.log").read_text()
        assert log == f"from below Python\nsaid by rank {rank}\ncomplained by rank {rank}\n"


def test_a_stop_reaches_every_rank_and_lets_it_finish(attempts, tmp_path, until):
    launched, mark = attempts(tmp_path / "run")
    _facts(tmp_path / "run", until)
    local.request_stop(launched.pid)
    until(lambda: not marked(mark))
    assert (tmp_path / "run" / "saved-0").exists()
    assert (tmp_path / "run" / "saved-1").exists()
    assert not is_alive(launched.pid, launched.create_time_s)
    local.request_stop(launched.pid)  # of an attempt that is gone: nothing happens


def test_a_rank_that_ignores_the_stop_is_killed_when_the_budget_is_spent(attempts, tmp_path, until):
    run = tmp_path / "run"
    run.mkdir()
    (run / "stubborn-1").touch()
    launched, mark = attempts(run, cluster=ClusterConfig(processes_per_node=2, stop_budget_s=0.5))
    _facts(run, until)
    local.request_stop(launched.pid)
    until(lambda: not marked(mark))
    assert (run / "saved-0").exists()
    assert not (run / "saved-1").exists()


def test_the_death_of_a_rank_ends_the_attempt(attempts, tmp_path, until):
    launched, mark = attempts(tmp_path / "run")
    os.kill(_facts(tmp_path / "run", until)[1]["pid"], signal.SIGKILL)
    until(lambda: not is_alive(launched.pid, launched.create_time_s) and not marked(mark))
    assert "Signal 9 (SIGKILL)" in (tmp_path / "run" / "attempts" / "0001" / "torchrun.log").read_text()


def test_training_outlives_whoever_started_it(attempts, tmp_path, until, python):
    (tmp_path / "run").mkdir()
    program = """
import sys
from pathlib import Path
from infra.config import ClusterConfig
from infra.launch import local
two = ClusterConfig(processes_per_node=2)
launched = local.launch(Path(sys.argv[1]), number=1, mark=sys.argv[2], cluster=two, module="small_worker")
print(launched.pid, launched.create_time_s, flush=True)
sys.stdin.read()
"""
    mark = f"outlives:{uuid.uuid4().hex}"
    launcher = python("-c", program, str(tmp_path / "run"), mark)
    try:
        pid, create_time_s = launcher.stdout.readline().split()
        ranks = {fact["pid"] for fact in _facts(tmp_path / "run", until)}
        assert os.getsid(int(pid)) == int(pid)  # a Ctrl-C in the terminal does not reach it
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        assert is_alive(int(pid), float(create_time_s))
        assert {process.pid for process in marked(mark)} == {int(pid), *ranks}
    finally:
        end_marked(mark, grace_s=0)
