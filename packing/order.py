import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6
_U64 = np.uint64


def sequence_at(positions: NDArray[np.int64], *, num_rows: int, seed: int) -> NDArray[np.int64]:
    """The row at each position of the endless stream of epochs.

    Epoch 0 is the rows in order (they were shuffled when they were packed); every later epoch is a permutation
    of its own, keyed by (seed, epoch), that needs no memory and no replay.

    Args:
        positions: sequences since the start of training, any shape, each at least 0.
        num_rows: rows in the dataset, at least 1.
        seed: decides the later epochs.

    Returns:
        Rows, in the shape of `positions`; each epoch holds every row exactly once.
    """
    epochs, offsets = np.divmod(positions, num_rows)
    rows = offsets.copy()
    for epoch in np.unique(epochs[epochs > 0]).tolist():
        here = epochs == epoch
        rows[here] = _permute(offsets[here], num_rows, key=mix_key(seed, epoch))
    return rows


def shuffled(count: int, *key: int) -> NDArray[np.int64]:
    """A permutation of 0..count-1 that depends on the key alone, not on the version of a random generator."""
    with np.errstate(over="ignore"):
        return np.argsort(_mix64(np.arange(count, dtype=_U64) + mix_key(*key)), kind="stable").astype(np.int64)


def mix_key(*parts: int) -> np.uint64:
    """Hash whole numbers of any size into 64 bits."""
    key = np.zeros(1, dtype=_U64)
    for part in parts:
        while True:
            key = _mix64(key ^ _U64(part & 0xFFFFFFFFFFFFFFFF))
            part >>= 64
            if part <= 0:
                break
    return _U64(key[0])


def _permute(indices: NDArray[np.int64], count: int, *, key: np.uint64) -> NDArray[np.int64]:
    """A keyed permutation of 0..count-1, applied to some of its elements.

    A Feistel network permutes the smallest even number of bits that can hold `count`; results beyond `count` go
    through it again until they fall inside, which keeps it a permutation (fewer than 4 walks on average).

    Source: Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", methods 2 and 3.
    """
    half_bits = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    values = _feistel(indices.astype(_U64), half_bits, key)
    while (outside := values >= _U64(count)).any():
        values[outside] = _feistel(values[outside], half_bits, key)
    return values.astype(np.int64)


def _feistel(values: NDArray[np.uint64], half_bits: int, key: np.uint64) -> NDArray[np.uint64]:
    shift, mask = _U64(half_bits), _U64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for number in range(_ROUNDS):
        left, right = right, left ^ (_mix64(right ^ mix_key(int(key), number)) & mask)
    return (left << shift) | right


def _mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble 64 bits, one to one.

    Source: splitmix64 of Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators".
    """
    x = x + _U64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))
