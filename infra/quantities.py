"""How numbers may be spelled in a job file.

YAML 1.1 reads ``1e-4`` and ``100e9`` as text; people write ``100B``. Fields typed with these names accept
every usual spelling with the same result, refuse booleans (YAML's ``yes``), and whole-number fields refuse
fractions.
"""

import math
import re
from decimal import Decimal, DecimalException
from typing import Annotated

from annotated_types import Ge, Gt
from pydantic import BeforeValidator

_SUFFIXES = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "B": 10**9,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_LARGEST = 10**18  # a slip such as 1e99999 would take the memory of the machine to write out
_COUNT = re.compile(r"^\s*([+-]?[0-9][0-9_]*(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*(Ki|Mi|Gi|Ti|[KMBGT])?\s*$")


def parse_count(value: object) -> int:
    """Read a whole number: ``384``, ``1e5``, ``100B`` (10⁹), ``8Ki`` (2¹⁰).

    Raises:
        ValueError: not a number, not whole, or a boolean.
    """
    if isinstance(value, bool):
        raise ValueError("expected a whole number, not true or false")
    if isinstance(value, int):
        exact: Decimal | None = Decimal(value)
    else:
        exact = _finite(value) if isinstance(value, float) else _suffixed(value)
    if exact is None:
        raise ValueError("expected a whole number such as 384, 1e5, 100B (10^9) or 8Ki (2^10)")
    if abs(exact) > _LARGEST:
        raise ValueError("expected a whole number of at most 10^18")
    if exact != exact.to_integral_value():
        raise ValueError("expected a whole number, this one has a fraction")
    return int(exact)


def parse_number(value: object) -> float:
    """Read a real number in any usual spelling: ``1e-4``, ``"0.1"``, ``3``.

    Raises:
        ValueError: not a finite number, or a boolean.
    """
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ValueError("expected a number such as 0.1 or 1e-4") from None
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    return number


def _finite(value: float) -> Decimal | None:
    return Decimal(repr(value)) if math.isfinite(value) else None


def _suffixed(value: object) -> Decimal | None:
    match = _COUNT.match(value) if isinstance(value, str) else None
    if match is None:
        return None
    try:
        return Decimal(match[1].replace("_", "")) * _SUFFIXES[match[2] or ""]
    except DecimalException:  # an exponent beyond all bounds
        return None


Count = Annotated[int, BeforeValidator(parse_count, json_schema_input_type=int | str), Ge(0)]
"""A whole number of things, zero allowed."""
PositiveCount = Annotated[int, BeforeValidator(parse_count, json_schema_input_type=int | str), Gt(0)]
"""A whole number of things, at least one."""
Number = Annotated[float, BeforeValidator(parse_number, json_schema_input_type=float | str)]
"""Any finite number."""
NonNegativeNumber = Annotated[float, BeforeValidator(parse_number, json_schema_input_type=float | str), Ge(0)]
"""A finite number, zero allowed."""
PositiveNumber = Annotated[float, BeforeValidator(parse_number, json_schema_input_type=float | str), Gt(0)]
"""A finite number above zero."""
