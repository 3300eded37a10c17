import pytest
from campaigns import Stayer


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The small campaign carried from text to a registered model, once for all tests."""
    stayer = Stayer(tmp_path_factory.mktemp("undisturbed"))
    job = stayer.write_jobs()
    done = stayer.call("run", str(job))
    assert done.returncode == 0, done.stderr
    stayer.first_output = done
    return stayer


@pytest.fixture(scope="session")
def prepared(undisturbed, tmp_path_factory):
    """Makes a new home in which the base model and the data are there already, and nothing of the small run."""
    import shutil

    def make(name: str) -> Stayer:
        stayer = Stayer(tmp_path_factory.mktemp(name))
        stayer.write_jobs()
        source, target = undisturbed.home / ".stayer", stayer.home / ".stayer"
        for part in ("tokenizers", "datasets", "runs"):
            shutil.copytree(source / part, target / part)
        small = stayer.run_of("small")
        shutil.rmtree(small.path)
        return stayer

    return make
