"""YAML that remembers where each key stood, so that an error can point at it."""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from flows.problems import Problem

KeyPath = tuple[str | int, ...]


@dataclass
class SourcedData:
    """Plain data plus the place (``file:line``) of every key in it."""

    data: Any
    places: dict[KeyPath, str] = field(default_factory=dict)
    fallback: str = ""

    def place(self, path: KeyPath) -> str:
        """Where a key stands; for a key that is missing, where its section does."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, self.fallback)


class _Loader(yaml.SafeLoader):
    """Safe YAML with two of YAML 1.2's rules: only true and false are booleans, and 1e-4 is a number."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse(text: str, *, name: str) -> tuple[SourcedData, list[Problem]]:
    """Parse YAML and note the line of every key.

    Returns:
        The data with places, and problems of the text itself: bad syntax, a key given twice.
    """
    sourced = SourcedData(None, fallback=name)
    problems: list[Problem] = []
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            _walk(node, (), name, sourced.places, problems)
        sourced.data = {} if node is None else parse_scalar(text)
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        place = f"{name}:{mark.line + 1}" if mark else name
        problems = [Problem(place, "", f"not valid YAML: {getattr(err, 'problem', None) or err}")]
    except (ValueError, RecursionError) as err:  # a date or a number that cannot be; an anchor inside itself
        problems = [Problem(name, "", f"not valid YAML: {err}")]
    return sourced, problems


def parse_scalar(text: str) -> Any:
    """Parse YAML by the same rules, without places: the value of an override such as ``key=[1, 2]``."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506  (a SafeLoader with fewer booleans)


def _walk(node: yaml.Node, path: KeyPath, name: str, places: dict[KeyPath, str], problems: list[Problem]) -> None:
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in seen:
                dotted = ".".join(map(str, (*path, key)))
                problems.append(Problem(f"{name}:{line}", dotted, f"given twice, first in line {seen[key]}"))
            seen[key] = line
            places[(*path, key)] = f"{name}:{line}"
            _walk(value_node, (*path, key), name, places, problems)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            places[(*path, index)] = f"{name}:{item.start_mark.line + 1}"
            _walk(item, (*path, index), name, places, problems)
