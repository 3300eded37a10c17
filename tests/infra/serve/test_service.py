import contextlib
import os
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from service_user import SMALL, small

from infra.errors import StayerError
from infra.serve.service import Record, in_use, kept_alive

USER = str(Path(__file__).with_name("service_user.py"))


def _enter(user):
    return Record.model_validate_json(user.stdout.readline())


def _leave(user):
    user.stdin.close()
    assert user.wait() == 0


def _answers(record):
    with urllib.request.urlopen(record.url, timeout=10) as response:
        return response.status == 200


@pytest.fixture
def folder(tmp_path):
    """Where services keep their files; none of them outlives the test."""
    folder = tmp_path / "services"
    yield folder
    for file in folder.glob("*.json"):
        record = Record.model_validate_json(file.read_text())
        if record.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(record.pid, signal.SIGKILL)


def test_users_that_come_together_share_one_server_and_the_last_to_leave_stops_it(folder, python):
    users = [python(USER, "small", str(folder)) for _ in range(4)]
    records = [_enter(user) for user in users]
    assert len(set(records)) == 1
    for user in users[:3]:
        _leave(user)
        assert _answers(records[0])
    _leave(users[3])
    assert not records[0].is_alive()
    assert not list(folder.glob("*.json"))


def test_a_killed_users_server_is_found_by_the_next_and_stopped_with_it(folder, python):
    user = python(USER, "small", str(folder))
    record = _enter(user)
    user.send_signal(signal.SIGKILL)
    user.wait()
    assert _answers(record)
    with in_use(small(), folder) as found:
        assert found == record
    assert not record.is_alive()


def test_a_killed_user_does_not_keep_the_server_up(folder, python):
    killed = python(USER, "small", str(folder))
    record = _enter(killed)
    with in_use(small(), folder):
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert not record.is_alive()


def test_a_dead_server_is_replaced_at_its_old_address(folder, until):
    with in_use(small(), folder) as record:
        os.kill(record.pid, signal.SIGKILL)
        until(lambda: not record.is_alive())
        with in_use(small(), folder) as successor:
            assert successor.pid != record.pid
            assert successor.url == record.url
            assert _answers(successor)
    assert not successor.is_alive()


def test_a_server_that_is_killed_while_it_is_kept_comes_back_and_goes_with_its_user(folder, until):
    file = folder / f"{small().name}.json"
    with kept_alive(small(), folder) as record:
        os.kill(record.pid, signal.SIGKILL)
        until(lambda: Record.model_validate_json(file.read_text()).pid != record.pid)
        again = Record.model_validate_json(file.read_text())
        assert again.port == record.port
    assert not again.is_alive()


def test_a_busy_port_is_left_to_its_owner(folder):
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # busy already: just as good
            stranger.bind(("127.0.0.1", small().port))
            stranger.listen()
        with in_use(small(), folder) as record:
            assert record.port != small().port
            assert _answers(record)


def test_a_server_that_cannot_start_is_reported_with_its_last_words(folder):
    broken = small(program="import sys; sys.exit('no such database')")
    with (
        pytest.raises(StayerError, match="small server ended while it was starting: no such database") as error,
        in_use(broken, folder),
    ):
        pass
    assert str(folder / "small.log") in error.value.hint


def test_a_server_that_ignores_the_stop_signal_is_killed(folder, monkeypatch):
    monkeypatch.setattr("infra.serve.service._STOP_TIMEOUT_S", 0.2)
    stubborn = small(program="import signal; signal.signal(15, signal.SIG_IGN); " + SMALL)
    with in_use(stubborn, folder) as record:
        assert _answers(record)
    assert not record.is_alive()
