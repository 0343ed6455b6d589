"""JSON that any reader takes."""

import json
from pathlib import Path

import pytest

from loco_train.json_text import json_text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_json_has_no_word_for_is_null(value):
    assert json.loads(json_text({"loss": value, "steps": 3}), parse_constant=pytest.fail) == {"loss": None, "steps": 3}


def test_numbers_and_text_survive():
    value = {"a": 0.1 + 0.2, "b": [2**53 + 1, "ä \u2028 \ufffd"], "path": "x/y"}
    assert json.loads(json_text({**value, "path": Path("x/y")}, indent=2)) == value
