"""What pydantic found wrong with a job file, in words for the person who wrote it."""

import difflib
import types
import typing
from typing import Any

from pydantic import BaseModel, ValidationError

from flows.job import Job
from flows.problems import Problem
from flows.yaml_lines import KeyPath, SourcedData


def explain(err: ValidationError, sourced: SourcedData) -> list[Problem]:
    """One problem a key: where it stands, what was found, what is accepted, the nearest known key."""
    problems: dict[tuple[str, str], Problem] = {}
    for error in err.errors(include_url=False):
        path, offending = _path_in_data(error["loc"], error["type"], sourced.data)
        message, hint = _message(error, path, offending)
        problem = Problem(sourced.place(path), dotted(path), message, hint)
        if isinstance(offending, dict | list) and error["type"] == "string_type" and len(error["loc"]) > len(path):
            continue  # one arm of `text or section`: the other arm's errors say more
        known = problems.get((problem.key, problem.place))
        if known is not None and known.message != message:
            problem = Problem(problem.place, problem.key, f"{known.message}; or {message.split(': ', 1)[-1]}", hint)
        problems[(problem.key, problem.place)] = problem
    return list(problems.values())


def _path_in_data(loc: tuple[str | int, ...], kind: str, data: Any) -> tuple[KeyPath, Any]:
    """The error's location without pydantic's union tags, and the value that stands there."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        last = index == len(loc) - 1
        known = range(len(data)) if isinstance(data, list) else data if isinstance(data, dict) else ()
        if part in known:
            data = data[part]
        elif not (last and kind == "missing"):
            continue
        path.append(part)
    return tuple(path), data


def _message(error: Any, path: KeyPath, offending: Any) -> tuple[str, str]:
    kind = error["type"]
    if kind == "extra_forbidden":
        return "unknown key", _nearest(path)
    if kind == "missing":
        return "required, but not given", _meaning(path)
    accepted = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if isinstance(offending, dict | list):
        return accepted, _meaning(path)
    return f"found {offending!r}: expected {accepted.removeprefix('expected ')}", _meaning(path)


def _nearest(path: KeyPath) -> str:
    """The nearest known key of the section, or the section where a key of this name belongs."""
    name = str(path[-1])
    section = _model_at(path[:-1])
    fields = list(section.model_fields) if section else []
    if close := difflib.get_close_matches(name, fields, n=1, cutoff=0.6):
        return f"did you mean {close[0]}?"
    homes = [".".join(where) for where in _all_keys(Job) if where[-1] == name]
    if homes:
        return f"{name} belongs to {' or '.join(homes)}"
    return f"known keys: {', '.join(fields)}" if fields else ""


def _meaning(path: KeyPath) -> str:
    section = _model_at(path[:-1])
    field = section.model_fields.get(str(path[-1])) if section and path else None
    return (field.description or "").rstrip(".").replace("`", "") if field else ""


def _model_at(path: KeyPath) -> type[BaseModel] | None:
    model: type[BaseModel] | None = Job
    for part in path:
        if isinstance(part, int):
            continue
        field = model.model_fields.get(part) if model else None
        model = _nested_model(field.annotation) if field else None
    return model


def _nested_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (list, typing.Union, types.UnionType):
        return next((m for a in typing.get_args(annotation) if (m := _nested_model(a))), None)
    return None


def _all_keys(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append((*prefix, name))
        nested = _nested_model(field.annotation)
        if nested is not None:
            keys += _all_keys(nested, (*prefix, name))
    return keys


def dotted(path: KeyPath) -> str:
    """A key as people write it: ``training.learning_rate``."""
    return ".".join(map(str, path))
