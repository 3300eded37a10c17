import signal
import subprocess
import sys
import uuid

import psutil
import pytest

from infra.launch.processes import MARK_VARIABLE, end_marked, is_alive, marked, start_time_s

STUBBORN = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
signal.pause()
"""
POLITE = """
import signal, sys
from pathlib import Path
def leave(*_):
    Path(sys.argv[1]).write_text("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True:
    signal.pause()
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def mark():
    mark = f"test:{uuid.uuid4().hex}"
    yield mark
    end_marked(mark, grace_s=0)


def test_an_orphan_in_a_session_of_its_own_is_found_by_its_mark(python, mark):
    parent = python("-c", PARENT, STUBBORN, **{MARK_VARIABLE: mark})
    orphan = int(parent.stdout.readline())
    assert {process.pid for process in marked(mark)} == {parent.pid, orphan}
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert {process.pid for process in marked(mark)} == {orphan}


def test_another_attempts_processes_are_left_alone(python, mark):
    other = f"{mark}-other"
    mine = python("-c", STUBBORN, **{MARK_VARIABLE: mark})
    theirs = python("-c", STUBBORN, **{MARK_VARIABLE: other})
    assert mine.stdout.readline() == theirs.stdout.readline() == "ready\n"
    end_marked(mark, grace_s=0)
    assert not marked(mark)
    assert [process.pid for process in marked(other)] == [theirs.pid]


def test_whoever_wants_to_leave_may_finish_and_whoever_does_not_is_killed(python, mark, tmp_path, until):
    polite = python("-c", POLITE, str(tmp_path / "checkpoint"), **{MARK_VARIABLE: mark})
    assert polite.stdout.readline() == "ready\n"
    end_marked(mark, grace_s=600)
    assert (tmp_path / "checkpoint").read_text() == "saved"
    assert polite.wait() == 0

    stubborn = python("-c", STUBBORN, **{MARK_VARIABLE: mark})
    assert stubborn.stdout.readline() == "ready\n"
    end_marked(mark, grace_s=0.2)
    assert not marked(mark)
    assert stubborn.wait() == -signal.SIGKILL


def test_a_stopped_process_is_ended_too(python, mark):
    process = python("-c", POLITE, "unused", **{MARK_VARIABLE: mark})
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGSTOP)
    end_marked(mark, grace_s=0.2)
    assert not marked(mark)
    assert process.wait() == -signal.SIGKILL


def test_a_zombie_is_dead(mark, until):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={MARK_VARIABLE: mark})
    started_s = start_time_s(process.pid)
    assert is_alive(process.pid, started_s)
    process.kill()  # and nobody waits for it yet
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    assert not is_alive(process.pid, started_s)
    assert not marked(mark)
    process.communicate()
    assert not is_alive(process.pid, started_s)


def test_a_later_process_of_the_same_pid_is_another_one(python):
    process = python("-c", "input()")
    assert is_alive(process.pid, start_time_s(process.pid))
    assert not is_alive(process.pid, start_time_s(process.pid) - 1)


def test_setting_the_clock_does_not_make_a_process_another_one(python, monkeypatch):
    process = python("-c", "input()")
    started_s = start_time_s(process.pid)
    boot_time, create_time = psutil.boot_time(), psutil.Process(process.pid).create_time()
    monkeypatch.setattr(psutil, "boot_time", lambda: boot_time + 3600)
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: create_time + 3600)
    assert is_alive(process.pid, started_s)
