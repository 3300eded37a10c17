import pytest

from tasks.tracking_items import as_params, flatten, redact, step_metrics


def test_sections_become_dotted_keys_and_plain_lists_stay_whole():
    job = {"a": {"b": {"c": 1}}, "betas": [0.9, 0.95], "sources": [{"uri": "x"}, {"uri": "y"}], "empty": {}}
    expected = {"a.b.c": 1, "betas": [0.9, 0.95], "sources.0.uri": "x", "sources.1.uri": "y", "empty": {}}
    assert flatten(job) == expected


def test_names_and_values_become_what_the_tracker_takes():
    params = as_params({"a key: ü": None, "paths": "p" * 20_000, "n": 3})
    assert params["a key_ _"] == ""
    assert params["n"] == "3"
    assert len(params["paths"]) == 500
    assert params["paths"].endswith("… (shortened)")


def test_only_numbers_of_a_step_are_metrics():
    row = {"step": 3, "attempt": 1, "time_s": 9.0, "loss": 2.5, "mfu": None, "tokens": 64}
    assert step_metrics(row) == {"loss": 2.5, "tokens": 64.0}


def test_passwords_in_urls_are_not_told():
    assert (
        redact("uri: https://me:secret@host:5000/x and s3://bucket/a@b")
        == "uri: https://***@host:5000/x and s3://bucket/a@b"
    )
    assert as_params({"tracking.uri": "http://u:p@h"}) == {"tracking.uri": "http://***@h"}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("s3://AK:se/cret@b/x", "s3://***@b/x"),
        ("https://u:p@ss1@w/x", "https://***@w/x"),
        ("https://acct.blob/x?sig=SECRET&token=TOK", "https://acct.blob/x?sig=***&token=***"),
    ],
)
def test_secrets_in_odd_urls_are_not_told_either(url, told):
    assert redact(url) == told
