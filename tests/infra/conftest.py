import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def until() -> Callable[..., None]:
    """Wait for a condition; fails when it does not come true before the deadline."""

    def wait(condition: Callable[[], object], *, timeout_s: float = 120) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s} s"
            time.sleep(0.02)

    return wait


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python programs that can import the packages under test; they are killed when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        path = os.pathsep.join(p for p in (str(REPOSITORY), str(tmp_path), os.environ.get("PYTHONPATH", "")) if p)
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ | {"PYTHONPATH": path} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
