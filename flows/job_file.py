"""From a YAML file and ``--set`` options to a validated job, or to every problem at once."""

import os
import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

import deployments
from flows.job import Job
from flows.job_errors import dotted, explain
from flows.problems import JobFileError, Problem
from flows.yaml_lines import KeyPath, SourcedData, parse, parse_scalar
from infra import storage
from infra.errors import InputError

_VARIABLE = re.compile(r"\$\{(env|python):([^}]+)\}")
# What may differ between two runs that must end with the same weights (rounding aside).
_ROUNDING_ONLY = (
    "micro_batch_rows",
    "activation_checkpointing",
    "compile",
    "shard_group",
    "collective_timeout_s",
    "threads_per_process",
)


def load_job(file: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Read a job file, apply overrides (``training.learning_rate=1e-5``) and validate the whole.

    ``quickstart`` and other names of shipped jobs are taken where no such file exists.
    Variables ``${env:NAME}`` (environment) and ``${python:NAME}`` (folders of the running Python, such as
    ``stdlib`` and ``purelib``) are replaced in text values. Relative paths count from the job file's folder.

    Raises:
        JobFileError: with every problem of the file, each with line, key, what was found and what is accepted.
    """
    path = Path(file).expanduser()
    if not path.exists() and str(file) in shipped_jobs():
        path = shipped_jobs()[str(file)]
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(
            f"job file {file} {what}",
            hint=f"give the path of a YAML file, or the name of a shipped job: {', '.join(shipped_jobs())}",
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as err:
        raise InputError(f"job file {file} is not UTF-8 text: {err}") from err
    sourced, problems = parse(text, name=str(file))
    if not isinstance(sourced.data, dict):
        if not problems:
            problems = [Problem(str(file), "", "holds no sections; a job needs name, model and data")]
        raise JobFileError(problems)
    for override in overrides:
        problems += _apply_override(sourced, override)
    sourced.data = _expand(sourced.data, (), sourced, problems)
    _resolve_paths(sourced.data, path.resolve().parent)
    try:
        job = Job.model_validate(sourced.data)
    except ValidationError as err:
        problems += explain(err, sourced)
    if problems:
        raise JobFileError(problems)
    return job


def shipped_jobs() -> dict[str, Path]:
    """The jobs that come with Stayer, by name."""
    return {file.stem: file for file in sorted((Path(deployments.__file__).parent / "jobs").glob("*.yaml"))}


def base_of(job: Job) -> Job | None:
    """The job whose final model this one continues, if it names one."""
    return load_job(job.model.base_job) if job.model.base_job else None


def lineage(job: Job) -> list[Job]:
    """The job after all the jobs it builds on, oldest first.

    Raises:
        InputError: a job builds on itself.
    """
    chain, seen = [job], []
    while (file := chain[0].model.base_job) is not None:
        if file in seen:
            raise InputError(f"{file} builds on itself through model.base_job", hint="one job must start from a model")
        seen.append(file)
        chain.insert(0, load_job(file))
    return chain


def result_hash(job: Job) -> str:
    """Fingerprint of everything in a job that shapes the trained weights, rounding aside.

    A base job enters with its content, so that changing it changes every job built on it.
    """
    found = ""
    for one in lineage(job):
        shape: dict[str, Any] = one.model_dump(mode="json", include={"model", "data", "packing", "training"})
        for key in _ROUNDING_ONLY:
            shape["training"].pop(key)
        if found:
            shape["model"]["base_job"] = found
        found = storage.fingerprint(shape)
    return found


def run_id(job: Job) -> str:
    """The run a job has unless another is asked for: the same job finds its own run again."""
    return f"{job.name}-{result_hash(job)[:8]}"


def to_yaml(job: Job) -> str:
    """The resolved job as YAML, defaults included; loading it gives the same job."""
    return yaml.safe_dump(job.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _apply_override(sourced: SourcedData, override: str) -> list[Problem]:
    place = f"--set {override}"
    key, separator, text = override.partition("=")
    if not separator or not key:
        return [Problem(place, "", "an override reads KEY=VALUE, such as training.learning_rate=1e-5")]
    try:
        value = parse_scalar(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return [Problem(place, key, f"{text!r} is not valid YAML")]
    path: tuple[Any, ...] = tuple(int(p) if p.isdecimal() else p for p in key.split("."))
    target: Any = sourced.data
    for depth, part in enumerate(path):
        if not (isinstance(target, dict) or (isinstance(target, list) and part in range(len(target)))):
            return [Problem(place, key, f"{dotted(path[:depth])} is not a section with {part}")]
        sourced.places.setdefault(path[: depth + 1], place)
        if depth < len(path) - 1:
            target = target.setdefault(part, {}) if isinstance(target, dict) else target[part]
    target[path[-1]] = value
    sourced.places[path] = place
    return []


def _expand(value: Any, path: KeyPath, sourced: SourcedData, problems: list[Problem]) -> Any:
    if isinstance(value, dict):
        return {k: _expand(v, (*path, k), sourced, problems) for k, v in value.items()}
    if isinstance(value, list):
        return [_expand(v, (*path, i), sourced, problems) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        known = os.environ if kind == "env" else sysconfig.get_paths()
        if name in known:
            return known[name]
        hint = f"known: {', '.join(sorted(known))}" if kind == "python" else f"set the environment variable {name}"
        problems.append(Problem(sourced.place(path), dotted(path), f"{match[0]} has no value", hint))
        return match[0]

    return _VARIABLE.sub(replace, value)


def _resolve_paths(data: dict[Any, Any], folder: Path) -> None:
    """Make every relative path of the job absolute; hub names and URLs stay as they are."""
    model, plain = data.get("model"), data.get("data")
    if isinstance(model, dict):
        for key in ("path", "tokenizer", "base_job"):
            value = model.get(key)
            if isinstance(value, str) and (key == "base_job" or _is_path(value, folder)):
                model[key] = _absolute(value, folder)
    sources = plain.get("sources") if isinstance(plain, dict) else None
    for source in sources if isinstance(sources, list) else []:
        uri = source.get("uri") if isinstance(source, dict) else None
        if isinstance(uri, str):
            source["uri"] = _absolute(uri, folder)
        elif isinstance(uri, list):
            source["uri"] = [_absolute(u, folder) if isinstance(u, str) else u for u in uri]
    checkpoint = data.get("checkpoint")
    if isinstance(checkpoint, dict) and isinstance(checkpoint.get("store"), str):
        checkpoint["store"] = _absolute(checkpoint["store"], folder)


def _is_path(value: str, folder: Path) -> bool:
    """A model may be a folder or a hub name such as Qwen/Qwen3-8B: it is a folder if it looks or proves like one."""
    return value.startswith((".", "/", "~")) or os.path.exists(folder / value)  # noqa: PTH110


def _absolute(value: str, folder: Path) -> str:
    return value if "://" in value else os.path.normpath(folder / os.path.expanduser(value))  # noqa: PTH111
