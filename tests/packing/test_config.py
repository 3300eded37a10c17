import pytest
from pydantic import ValidationError

from packing.config import DataConfig, PackingConfig, SourceConfig


def test_one_uri_may_stand_without_a_list():
    assert SourceConfig(name="a", uri="x/*.txt").uri == ["x/*.txt"]


@pytest.mark.parametrize("name", ["A", "-a", "a b", "", "a/b"])
def test_a_source_name_is_a_slug(name):
    with pytest.raises(ValidationError):
        SourceConfig(name=name, uri="x")


@pytest.mark.parametrize("repeat", [0.5, 1.5, -1, "many", True])
def test_only_whole_passes_are_accepted(repeat):
    with pytest.raises(ValidationError):
        SourceConfig(name="a", uri="x", repeat=repeat)


@pytest.mark.parametrize(("repeat", "passes"), [(0, 0), ("3", 3), (2.0, 2)])
def test_whole_passes_in_any_spelling_are_accepted(repeat, passes):
    assert SourceConfig(name="a", uri="x", repeat=repeat).passes == passes


def test_two_sources_of_one_name_are_refused():
    twins = [SourceConfig(name="a", uri="x"), SourceConfig(name="a", uri="y")]
    with pytest.raises(ValidationError, match="stand twice: a"):
        DataConfig(sources=twins)


@pytest.mark.parametrize("typo", [{"seqlen": 8}, {"seq_len": 7}, {"strategy": "bestfit"}, {"buckets": 0}])
def test_unknown_keys_and_impossible_values_are_refused(typo):
    with pytest.raises(ValidationError):
        PackingConfig(**typo)


def test_held_out_fraction_stays_below_one_half():
    with pytest.raises(ValidationError):
        DataConfig(sources=[SourceConfig(name="a", uri="x")], held_out_fraction=0.5)


@pytest.mark.parametrize("config", [SourceConfig, DataConfig, PackingConfig])
def test_every_field_explains_itself(config):
    assert all(field.description for field in config.model_fields.values())
