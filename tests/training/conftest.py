from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import training_runs
from training_runs import Data, finish, make_data, make_run

from training.rundir import RunDir

MakeRun = Callable[..., RunDir]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    made = make_data(tmp_path_factory.mktemp("data"))
    assert made.num_rows < training_runs.TOTAL_ROWS, "the runs are meant to go beyond one epoch"
    return made


@pytest.fixture(scope="session")
def new_run(data: Data, tmp_path_factory: pytest.TempPathFactory) -> MakeRun:
    """A fresh run directory over the shared data."""

    def make(**options: Any) -> RunDir:
        options.setdefault("checkpoint", {"interval_steps": 4, "keep_last": 100})
        return make_run(tmp_path_factory.mktemp("runs") / "run", data, **options)

    return make


@pytest.fixture(scope="session")
def two_ranks(new_run: MakeRun) -> RunDir:
    """The run that the others are compared with: 2 ranks, micro-batches of 2, without dropout."""
    return finish(new_run(), ranks=2)


@pytest.fixture(scope="session")
def with_dropout(new_run: MakeRun) -> Callable[[], RunDir]:
    """A fresh run directory for a model that draws random numbers."""
    return lambda: new_run(architecture={"attention_dropout": 0.1})


@pytest.fixture(scope="session")
def undisturbed(with_dropout: Callable[[], RunDir]) -> RunDir:
    """What disturbed runs must equal bit for bit."""
    return finish(with_dropout(), ranks=2)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A bare run directory, for what needs no training."""
    run = RunDir(tmp_path / "run")
    run.checkpoints.mkdir(parents=True)
    return run
