import json
import sys
from pathlib import Path

import pytest
import yaml

from flows.cli import main
from flows.schema import SCHEMA_FILE, job_schema

ARCHITECTURE = {"model_type": "qwen3", "vocab_size": 512, "max_position_embeddings": 128}


@pytest.fixture
def stayer(tmp_path, monkeypatch, capsys):
    """Runs the command line in this process; returns exit code, stdout, stderr."""
    monkeypatch.setenv("STAYER_HOME", str(tmp_path / "home"))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["stayer", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        told = capsys.readouterr()
        return left.value.code or 0, told.out, told.err

    return call


@pytest.fixture
def job(tmp_path):
    """Writes a job over a small corpus; dotted keys change it."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.jsonl").write_text('{"text": "hello world"}\n')
    content = {
        "name": "small",
        "model": {"architecture": ARCHITECTURE, "tokenizer": {"vocab_size": 512}},
        "data": {"sources": [{"name": "text", "uri": "corpus/*.jsonl"}]},
        "packing": {"seq_len": 64},
    }
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def nothing_was_written(home: Path) -> bool:
    return not (home / "runs").exists() and not (home / "datasets").exists()


def test_a_good_job_is_valid(stayer, job):
    code, out, _ = stayer("validate", str(job), "--json")
    assert code == 0
    assert json.loads(out)["valid"] is True


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("data.sources.0.uri=absent/*.jsonl", "absent/*.jsonl matches no file"),
        ("data.sources.0.text_field=body", "body"),
        ("packing.seq_len=256", "rows are 256 tokens long but the model was made for 128 positions"),
        ("model.tokenizer={vocab_size: 600}", "the tokenizer has 600 entries but the model embeds only 512"),
        ("training.lerning_rate=1", "did you mean learning_rate?"),
        ("training.learning_rate=fast", "found 'fast': expected a number"),
        ("checkpoint.keep_last=0", "greater than 0"),
        ("model={path: ./no-such-model}", "no-such-model"),
        ("model={base_job: absent.yaml}", "absent.yaml does not exist"),
    ],
)
@pytest.mark.parametrize("command", ["validate", "run"])
def test_a_wrong_request_is_one_readable_error_and_writes_nothing(stayer, job, tmp_path, command, override, told):
    code, out, err = stayer(command, str(job), "--set", override)
    assert code == 2
    assert told in err
    assert "Traceback" not in err
    assert out == ""
    assert nothing_was_written(tmp_path / "home")


def test_a_corpus_without_text_is_refused(stayer, job, tmp_path):
    (tmp_path / "corpus" / "a.jsonl").write_text("")
    code, _, err = stayer("run", str(job))
    assert code == 2
    assert "all 1 files of source text are empty" in err
    assert nothing_was_written(tmp_path / "home")


def test_the_available_fields_are_named_when_the_text_field_is_not_there(stayer, job, tmp_path):
    (tmp_path / "corpus" / "a.jsonl").write_text('{"texts": "x", "id": 1}\n')
    code, _, err = stayer("validate", str(job))
    assert code == 2
    assert "a.jsonl, line 1" in err
    assert "texts" in err


def test_a_run_directory_of_another_job_is_refused(stayer, job, tmp_path):
    other = tmp_path / "home" / "runs" / "mine"
    other.mkdir(parents=True)
    text = yaml.safe_load(job.read_text())
    text["data"]["sources"][0]["uri"] = str(tmp_path / "corpus/*.jsonl")
    (other / "job.yaml").write_text(yaml.safe_dump({**text, "name": "another"}))
    code, _, err = stayer("run", str(job), "--run-id", "mine", "--set", "training.seed=5")
    assert code == 2
    assert "run mine belongs to another job (another" in err
    (other / "job.yaml").unlink()
    (other / "notes.txt").write_text("not a run")
    code, _, err = stayer("run", str(job), "--run-id", "mine")
    assert code == 2
    assert "is not a run directory" in err


@pytest.mark.parametrize("run_id", ["../up", "a/b", ".hidden"])
def test_a_run_id_is_a_plain_name(stayer, job, run_id):
    code, _, err = stayer("run", str(job), "--run-id", run_id)
    assert (code, "not a plain name" in err) == (2, True)


def test_an_unknown_run_lists_the_known_ones(stayer):
    code, _, err = stayer("status", "nope")
    assert code == 2
    assert "there is no run 'nope'" in err
    assert "none yet" in err


def test_an_unknown_command_or_option_is_a_wrong_request(stayer):
    assert stayer("fly")[0] == 2
    assert stayer("validate")[0] == 2
    assert stayer("status", "--colour")[0] == 2


@pytest.mark.parametrize("name", ["quickstart", "quickstart-base"])
def test_the_shipped_jobs_are_valid(stayer, name):
    code, out, err = stayer("validate", name)
    assert code == 0, err
    assert f"its run is {name}-" in out


def test_the_schema_for_editors_is_the_models(tmp_path):
    assert SCHEMA_FILE.read_text() == job_schema()
