"""From text to a packed dataset, in four steps that can each be called alone, anywhere, again.

`plan_preparation` → `tokenize_unit` for each unit → `pack_bucket` for each bucket → `finalize`. Units do not depend
on each other, nor do buckets. A step that was done is recognised; one that was killed is done again and gives the
same bytes, whatever the number of processes.
"""

from packing.buckets import BucketReport, pack_bucket
from packing.finalize import finalize, finished
from packing.manifest import Manifest, load_manifest, verify_dataset
from packing.plan import PreparationPlan, plan_preparation
from packing.tokenize import UnitReport, tokenize_unit

__all__ = [
    "BucketReport",
    "Manifest",
    "PreparationPlan",
    "UnitReport",
    "finalize",
    "finished",
    "load_manifest",
    "pack_bucket",
    "plan_preparation",
    "prepare",
    "tokenize_unit",
    "verify_dataset",
]


def prepare(plan: PreparationPlan) -> Manifest:
    """Do everything that is missing, in this process.

    Raises:
        InputError: the input cannot be prepared, or the finished dataset was damaged.
    """
    if finished(plan) is None:
        for unit in range(plan.num_units):
            tokenize_unit(plan, unit)
        for bucket in range(plan.num_buckets):
            pack_bucket(plan, bucket)
    return finalize(plan)
