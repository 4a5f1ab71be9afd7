"""A group needs two completions, however it is written."""

from typing import Any

import pytest

from grpo_protocol import ConfigError, GRPOConfig, load_config
from grpo_protocol.config_input import parse_assignments, with_setting


def settings(words: str) -> dict[str, str]:
    return parse_assignments(words.split())


def refusal(words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config({}, settings(words))
    return str(caught.value)


@pytest.mark.parametrize("value", [1, 0, -2, 2.5, "4"])
def test_M03_a_group_that_is_none_is_refused_in_a_table(value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"group_size": value})
    rule = "expected a whole number >= 2" if isinstance(value, int) else "expected a whole number"
    assert str(caught.value).startswith(f"group_size={value!r}: {rule}")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1", "1"),
        ("0", "0"),
        ("-2", "-2"),
        ("2.5", "'2.5'"),
        ("four", "'four'"),
        ("none", "'none'"),
    ],
)
def test_M03_a_group_that_is_none_is_refused_as_text_and_as_a_change(text: str, shown: str) -> None:
    assert refusal(f"group_size={text}").startswith(f"group_size={shown}: expected a whole number")
    with pytest.raises(ConfigError) as caught:
        with_setting(GRPOConfig(), "group_size", text)
    assert str(caught.value).startswith(f"group_size={shown}: expected a whole number")


def test_M03_the_text_of_a_whole_number_is_one() -> None:
    assert load_config({}, {"group_size": "2"}).group_size == 2
