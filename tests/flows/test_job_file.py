from pathlib import Path

import pytest

from flows.job_file import load_job, result_hash, run_id, to_yaml
from flows.problems import JobFileError
from infra.errors import InputError

JOB = """\
name: small
model:
  path: some-model
data:
  sources:
    - name: text
      uri: corpus/*.jsonl
training:
  learning_rate: 1e-4
  global_batch_rows: 8
"""


def write(folder: Path, text: str = JOB) -> Path:
    file = folder / "job.yaml"
    file.write_text(text)
    return file


def problems_of(file: Path, *overrides: str) -> list[str]:
    with pytest.raises(JobFileError) as caught:
        load_job(file, overrides)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("spelling", ["1e-4", "1E-4", "1.0e-4", "0.0001", '"0.0001"', '"1e-4"'])
def test_every_spelling_of_a_number_is_the_same_number(tmp_path, spelling):
    assert load_job(write(tmp_path, JOB.replace("1e-4", spelling))).training.learning_rate == 1e-4


@pytest.mark.parametrize(
    ("spelling", "tokens"), [("100B", 10**11), ("100e9", 10**11), ("384Ki", 393216), ("1e5", 10**5)]
)
def test_counts_accept_documented_suffixes(tmp_path, spelling, tokens):
    assert load_job(write(tmp_path), [f"training.total_tokens={spelling}"]).training.total_tokens == tokens


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_known_one(tmp_path):
    file = write(tmp_path, JOB.replace("learning_rate", "lerning_rate"))
    assert problems_of(file) == [f"{file}:9: training.lerning_rate: unknown key (did you mean learning_rate?)"]


def test_a_key_in_the_wrong_section_is_told_where_it_belongs(tmp_path):
    file = write(tmp_path, JOB + "seq_len: 128\n")
    assert problems_of(file) == [f"{file}:11: seq_len: unknown key (seq_len belongs to packing.seq_len)"]


def test_all_problems_of_a_file_come_at_once(tmp_path):
    text = JOB.replace("1e-4", "fast").replace("name: small", "nam: small") + "packing: {seq_len: 0}\n"
    file = write(tmp_path, text)
    told = problems_of(file)
    assert [line.split(": ")[1] for line in told] == ["name", "packing.seq_len", "training.learning_rate", "nam"]
    assert told[2].startswith(f"{file}:9: training.learning_rate: found 'fast': expected a number such as 0.1 or 1e-4")
    assert "greater than 0" in told[1]


def test_a_count_with_a_fraction_and_a_boolean_are_refused(tmp_path):
    assert "fraction" in problems_of(write(tmp_path), "training.global_batch_rows=1.5")[0]
    assert "true or false" in problems_of(write(tmp_path), "training.global_batch_rows=true")[0]


def test_a_choice_lists_what_is_accepted(tmp_path):
    (told,) = problems_of(write(tmp_path), "training.schedule=cosin")
    assert "--set training.schedule=cosin: training.schedule: found 'cosin'" in told
    assert "'constant', 'linear', 'cosine' or 'wsd'" in told


def test_a_key_given_twice_is_refused(tmp_path):
    file = write(tmp_path, JOB + "name: other\n")
    assert problems_of(file) == [f"{file}:11: name: given twice, first in line 1"]


def test_broken_yaml_is_located(tmp_path):
    file = write(tmp_path, "name: [small\n")
    (told,) = problems_of(file)
    assert told.startswith(f"{file}:2: not valid YAML")


def test_an_empty_file_and_a_missing_one_are_told_apart(tmp_path):
    assert "holds no sections" not in str(problems_of(write(tmp_path, "")))
    with pytest.raises(InputError, match="does not exist"):
        load_job(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="is a folder"):
        load_job(tmp_path)


def test_an_override_must_name_an_existing_section(tmp_path):
    assert "not a section" in problems_of(write(tmp_path), "name.first=x")[0]
    assert "KEY=VALUE" in problems_of(write(tmp_path), "training")[0]


def test_an_unset_variable_is_named(tmp_path):
    file = write(tmp_path, JOB.replace("corpus/*.jsonl", "${env:STAYER_NO_SUCH}/x"))
    assert "set the environment variable STAYER_NO_SUCH" in problems_of(file)[0]


def test_relative_paths_count_from_the_job_file_and_hub_names_stay(tmp_path):
    job = load_job(write(tmp_path))
    assert job.data.sources[0].uri == [str(tmp_path / "corpus/*.jsonl")]
    assert job.model.path == "some-model"
    (tmp_path / "some-model").mkdir()
    assert load_job(write(tmp_path)).model.path == str(tmp_path / "some-model")


def test_the_resolved_job_loads_to_the_same_job(tmp_path):
    job = load_job(write(tmp_path))
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(job))
    assert load_job(again) == job


def test_the_run_id_follows_what_shapes_the_weights_and_nothing_else(tmp_path):
    file = write(tmp_path)
    job = load_job(file)
    assert run_id(job) == f"small-{result_hash(job)[:8]}"
    same = ["training.micro_batch_rows=2", "cluster.processes_per_node=4", "checkpoint.interval_steps=7"]
    assert result_hash(load_job(file, same)) == result_hash(job)
    assert result_hash(load_job(file, ["training.global_batch_rows=16"])) != result_hash(job)


def test_a_changed_base_job_changes_every_job_built_on_it(tmp_path):
    base = tmp_path / "base.yaml"
    base.write_text(JOB)
    file = write(tmp_path, JOB.replace("path: some-model", "base_job: base.yaml"))
    before = result_hash(load_job(file))
    base.write_text(JOB.replace("1e-4", "2e-4"))
    assert result_hash(load_job(file)) != before


def test_exactly_one_origin_of_the_model(tmp_path):
    (told,) = problems_of(write(tmp_path), "model.base_job=other.yaml")
    assert "exactly one of path, base_job and architecture is needed, found path and base_job" in told


@pytest.mark.parametrize(
    "text",
    [
        "name: !!python/object:os.system x\n",
        "? {a: 1}\n: b\n",
        "a: &a [*a]\n",
        "deadline: 2025-13-45\n",
        "name: \x07\n",
        "- a\n- b\n",
        "just text\n",
        "name: [unclosed\n",
        "seed: " + "9" * 5000 + "\n",
    ],
)
def test_odd_yaml_is_a_problem_and_never_a_traceback(tmp_path, text):
    assert problems_of(write(tmp_path, text))


@pytest.mark.parametrize(
    "override",
    [
        "training.²=1",
        "deadline=2025-13-45",
        "data.sources.7.uri=x",
        "data.sources=3",
        "training=[1]",
        "=1",
        "model=null",
    ],
)
def test_odd_overrides_are_problems(tmp_path, override):
    assert problems_of(write(tmp_path), override)


def test_a_number_too_large_to_be_meant_is_refused(tmp_path):
    assert "at most 10^18" in problems_of(write(tmp_path), f"training.total_tokens={'9' * 30}")[0]


def test_a_job_that_builds_on_itself_is_refused(tmp_path):
    job = load_job(write(tmp_path, JOB.replace("path: some-model", "base_job: job.yaml")))
    with pytest.raises(InputError, match="builds on itself"):
        run_id(job)
