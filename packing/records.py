"""Completion records: a unit of work is done when its record exists, and its record is written last.

While a dataset is made, each record is a file in the work folder. A finished dataset keeps them all in one file,
so that a repeated call still gets its answer after the work folder is gone.
"""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from infra import storage
from infra.errors import StayerError
from packing.manifest import manifest_path
from packing.plan import PreparationPlan

_Record = TypeVar("_Record", bound=BaseModel)
_REPORTS_FILE = "reports.json"


def is_finished(plan: PreparationPlan) -> bool:
    """Whether the dataset has its manifest."""
    return manifest_path(plan.dataset).is_file()


def recall(plan: PreparationPlan, kind: type[_Record], number: int) -> _Record | None:
    """The record of a unit of work, or None while it is not done."""
    if is_finished(plan):
        reports = storage.read_json(storage.join(plan.dataset, _REPORTS_FILE))
        return kind.model_validate(reports[kind.__name__][number])
    path = _path(plan, kind, number)
    return kind.model_validate(storage.read_json(str(path))) if path.is_file() else None


def keep(plan: PreparationPlan, record: BaseModel, number: int) -> None:
    """Declare a unit of work done."""
    storage.write_json(str(_path(plan, type(record), number)), record.model_dump(mode="json"))


def recall_all(plan: PreparationPlan, kind: type[_Record], count: int) -> list[_Record]:
    """The records of all units of work of a kind, in order.

    Raises:
        StayerError: one is not done yet.
    """
    records = []
    for number in range(count):
        if (record := recall(plan, kind, number)) is None:
            raise StayerError(
                f"{plan.work} has no {_path(plan, kind, number).name} ({count} expected): the step before is not done",
                hint="run the preparation again, it does what is missing",
            )
        records.append(record)
    return records


def archive(plan: PreparationPlan, *kinds: tuple[type[BaseModel], int]) -> None:
    """Copy the records into the dataset folder; call before the manifest is written."""
    reports = {
        kind.__name__: [record.model_dump(mode="json") for record in recall_all(plan, kind, count)]
        for kind, count in kinds
    }
    storage.write_json(storage.join(plan.dataset, _REPORTS_FILE), reports)


def _path(plan: PreparationPlan, kind: type[BaseModel], number: int) -> Path:
    return Path(plan.work) / f"{kind.__name__}-{number:05d}.json"
