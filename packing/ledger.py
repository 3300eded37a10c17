import hashlib

import numpy as np
from numpy.typing import NDArray

GENESIS = ""
"""Head of a chain without steps."""


def extend(head: str, step: int, sequence_ids: NDArray[np.int64]) -> str:
    """Add a step to the hash chain of what was trained on, in which order.

    Two runs have the same head exactly if they trained on the same sequences in the same steps and order.

    Args:
        head: head before the step, GENESIS for the first.
        step: number of the step.
        sequence_ids: dataset rows of the step, all ranks, in order.

    Returns:
        The new head, 64 hex digits.
    """
    digest = hashlib.sha256(f"{head}\n{step}\n".encode())
    digest.update(sequence_ids.astype("<i8").tobytes())
    return digest.hexdigest()
