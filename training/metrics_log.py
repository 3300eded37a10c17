"""Reading metrics.jsonl while it grows, without reading it all again each time."""

import json
from pathlib import Path
from typing import Any


class MetricsFollower:
    """Hands out the lines that were appended since the last look; a line still being written waits."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0

    def new_rows(self) -> list[dict[str, Any]]:
        """The new complete lines, in the order they were written; torn ones (their writer died) are left out."""
        if not self._file.exists():
            return []
        with self._file.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        complete, newline, _ = text.rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        rows = []
        for line in complete.split(b"\n"):
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
        return rows
