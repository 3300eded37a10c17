import pytest
from pydantic import ValidationError

from infra.config import ClusterConfig


def test_more_nodes_than_the_launcher_can_reach_are_refused_in_words():
    with pytest.raises(ValidationError, match="on this machine only, not on 2: use 1"):
        ClusterConfig(nodes=2)


def test_an_unknown_key_is_refused():
    with pytest.raises(ValidationError, match="Extra inputs"):
        ClusterConfig.model_validate({"process_per_node": 2})
