import os
import signal

import pytest

from infra.locks import LockHeldError, exclusive

CONTENDER = """
import sys
from pathlib import Path
from infra.locks import LockHeldError, exclusive

for line in sys.stdin:
    try:
        with exclusive(Path(line.strip()), what=f"run {sys.argv[1]}"):
            print("owner", flush=True)
            sys.stdin.readline()
        print("released", flush=True)
    except LockHeldError as refusal:
        print(refusal.message, flush=True)
"""


def _say(process, line):
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def test_of_two_that_start_together_exactly_one_owns_the_place(tmp_path, python):
    contenders = [python("-c", CONTENDER, "a"), python("-c", CONTENDER, "b")]
    for race in range(20):
        for contender in contenders:
            _say(contender, tmp_path / f"race-{race}")
        answers = [contender.stdout.readline().strip() for contender in contenders]
        assert answers.count("owner") == 1
        owner = contenders[answers.index("owner")]
        _say(owner, "release")
        assert owner.stdout.readline() == "released\n"


def test_a_refusal_names_the_owner(tmp_path, python):
    owner = python("-c", CONTENDER, "quickstart")
    _say(owner, tmp_path / "lock")
    assert owner.stdout.readline() == "owner\n"
    named = rf"lock is held by run quickstart \(process {owner.pid} on {os.uname().nodename}, since \d{{4}}-"
    with pytest.raises(LockHeldError, match=named), exclusive(tmp_path / "lock", what="another run"):
        pass


def test_one_process_cannot_own_a_place_twice(tmp_path):
    with (
        exclusive(tmp_path / "lock", what="the first"),
        pytest.raises(LockHeldError, match="the first"),
        exclusive(tmp_path / "lock", what="the second"),
    ):
        pass
    with exclusive(tmp_path / "lock", what="the second"):
        pass


def test_a_killed_owner_is_replaced(tmp_path, python):
    owner = python("-c", CONTENDER, "doomed")
    _say(owner, tmp_path / "lock")
    assert owner.stdout.readline() == "owner\n"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    with exclusive(tmp_path / "lock", what="the heir"):
        pass


@pytest.mark.parametrize("way", ["fork", "exec"])
def test_a_child_that_outlives_the_owner_holds_nothing(tmp_path, python, way):
    program = """
import os, subprocess, sys, time
from pathlib import Path
from infra.locks import exclusive
with exclusive(Path(sys.argv[1]), what="parent"):
    if sys.argv[2] == "exec":
        subprocess.Popen([sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"])
    elif os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
    sys.stdin.read()
"""
    owner = python("-c", program, str(tmp_path / "lock"), way)
    child = int(owner.stdout.readline())
    try:
        with pytest.raises(LockHeldError, match="parent"), exclusive(tmp_path / "lock", what="too early"):
            pass
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        with exclusive(tmp_path / "lock", what="the heir"):
            os.kill(child, 0)  # still there
    finally:
        os.kill(child, signal.SIGKILL)


def test_waiting_ends_when_the_owner_is_done(tmp_path, python):
    owner = python("-c", CONTENDER, "short")
    _say(owner, tmp_path / "lock")
    assert owner.stdout.readline() == "owner\n"
    waiter = python("-c", WAITER, str(tmp_path / "lock"))
    assert waiter.stdout.readline() == "waiting\n"
    _say(owner, "release")
    assert waiter.stdout.readline() == "owner\n"


WAITER = """
import sys
from pathlib import Path
from infra.locks import exclusive
print("waiting", flush=True)
with exclusive(Path(sys.argv[1]), what="patience", wait_s=600):
    print("owner", flush=True)
"""
