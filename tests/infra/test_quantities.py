import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from infra.quantities import Count, Number, PositiveCount, PositiveNumber, parse_count, parse_number


class Sizes(BaseModel):
    any_count: Count = 0
    count: PositiveCount = 1
    number: Number = 0.0
    positive: PositiveNumber = 1.0


@pytest.mark.parametrize(
    ("spelled", "count"),
    [
        ("384", 384),
        ("1e5", 100_000),  # YAML 1.1 reads text here
        ("1.0e+5", 100_000),  # and a fraction here
        ("100e9", 100_000_000_000),
        ("100B", 100_000_000_000),
        ("100 B", 100_000_000_000),
        ("1.5K", 1500),
        ("2G", 2_000_000_000),
        ("1T", 10**12),
        ("8Ki", 8192),
        ("0.5Mi", 524_288),
        ("1_000_000", 1_000_000),
        ("'31790'", 31_790),
    ],
)
def test_a_count_means_the_same_in_every_spelling(spelled, count):
    assert parse_count(yaml.safe_load(spelled)) == count


@pytest.mark.parametrize(
    "spelled",
    ["yes", "true", "1.5", "1.2345K", "'12 rows'", "''", "100b", "8KiB", ".nan", ".inf", "[1]", "null", "1e99999999"],
)
def test_what_is_no_whole_number_is_refused_as_a_count(spelled):
    with pytest.raises(ValueError, match="expected"):
        parse_count(yaml.safe_load(spelled))


@pytest.mark.parametrize(
    ("spelled", "number"), [("1e-4", 1e-4), ("1.0e-4", 1e-4), ("'0.1'", 0.1), ("3", 3.0), ("-2.5", -2.5)]
)
def test_a_number_means_the_same_in_every_spelling(spelled, number):
    assert parse_number(yaml.safe_load(spelled)) == number


@pytest.mark.parametrize("spelled", ["no", "fast", "''", ".nan", "-.inf", "'infinity'", "[1]", "null"])
def test_what_is_no_finite_number_is_refused(spelled):
    with pytest.raises(ValueError, match="expected"):
        parse_number(yaml.safe_load(spelled))


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_a_count_survives_being_written_and_read(count):
    assert parse_count(str(count)) == parse_count(f"{count}e0") == count


@pytest.mark.parametrize("bad", [{"count": 0}, {"any_count": -1}, {"positive": 0}, {"positive": "-1e-4"}])
def test_bounds_hold_for_every_spelling(bad):
    with pytest.raises(ValidationError):
        Sizes.model_validate(bad)


def test_an_error_tells_what_is_accepted():
    with pytest.raises(ValidationError, match=r"such as 384, 1e5, 100B \(10\^9\) or 8Ki \(2\^10\)"):
        Sizes.model_validate({"count": "many"})
