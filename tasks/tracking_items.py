"""What is sent to the tracker, as plain data: names and values it accepts."""

import re
from typing import Any

_MAX_VALUE = 500
_MAX_KEY = 200
_MARK = "… (shortened)"
_NOT_METRICS = {"step", "attempt", "time_s"}


def redact(text: str) -> str:
    """Text without the user names, passwords and query values of URLs in it.

    A password may hold / and @: where a colon precedes an @, everything up to the last @ goes, rather too much.
    """
    text = re.sub(r"://(?:[^\s@]*:\S*|[^/@\s]+)@", "://***@", text)
    return re.sub(r"([?&][^=&\s]+=)[^&\s'\"]+", r"\1***", text)


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted keys; lists of plain values stay whole."""
    if isinstance(value, dict) and value:
        flat: dict[str, Any] = {}
        for key, item in value.items():
            flat |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
        return flat
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        flat = {}
        for index, item in enumerate(value):
            flat |= flatten(item, f"{prefix}.{index}")
        return flat
    return {prefix: value}


def as_params(values: dict[str, Any]) -> dict[str, str]:
    """Values as the tracker takes them: odd characters in names mapped to ``_``, long values visibly shortened."""
    params = {}
    for key, value in values.items():
        name = re.sub(r"[^\w\-. /]", "_", key, flags=re.ASCII)[:_MAX_KEY] or "_"
        text = "" if value is None else redact(str(value))
        params[name] = text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - len(_MARK)] + _MARK
    return params


def step_metrics(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of one line of metrics.jsonl."""
    return {k: float(v) for k, v in row.items() if k not in _NOT_METRICS and isinstance(v, int | float)}
