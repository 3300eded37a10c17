import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_runs import REPOSITORY, Data, finish, newest, series, tensors
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.rundir import RunDir


def export(run: RunDir, step: int, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "training.export", str(run.path), str(step), str(target)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def exported(two_ranks: RunDir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("export") / "model"
    done = export(two_ranks, 12, target)
    assert done.returncode == 0, done.stderr
    return target


def test_transformers_loads_an_export_with_equal_weights(two_ranks, exported):
    lm = AutoModelForCausalLM.from_pretrained(exported)
    saved = tensors(newest(two_ranks)[0])
    for name, weight in lm.named_parameters():
        assert torch.equal(weight, saved[f"model.{name}"]), name
    assert lm.lm_head.weight is lm.model.embed_tokens.weight


def test_an_export_brings_its_tokenizer_and_stops_at_its_end_of_text(exported, data: Data):
    tokenizer = AutoTokenizer.from_pretrained(exported)
    assert tokenizer.decode(tokenizer("abc def")["input_ids"]) == "abc def"
    assert AutoModelForCausalLM.from_pretrained(exported).generation_config.eos_token_id == tokenizer.eos_token_id


def test_an_exported_model_can_be_trained_on(exported, new_run, two_ranks):
    run = finish(new_run(model=exported, training={"total_tokens": 8 * 32, "warmup_steps": 0}), ranks=1)
    assert series(run, "loss")[0] < series(two_ranks, "loss")[0] - 0.5


def test_an_export_of_a_damaged_checkpoint_fails_in_one_line_and_leaves_nothing(two_ranks, tmp_path):
    run = RunDir(tmp_path / "run")
    shutil.copytree(two_ranks.path, run.path)
    next(run.checkpoint(12).glob("*.distcp")).unlink()
    done = export(run, 12, tmp_path / "model")
    assert done.returncode == 1
    assert "is missing" in done.stderr and "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_an_export_never_overwrites(two_ranks, tmp_path):
    done = export(two_ranks, 12, tmp_path)
    assert done.returncode == 2
    assert "exists" in done.stderr
