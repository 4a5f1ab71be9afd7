"""What people write becomes what they meant, or one line that says how to write it."""

import pytest

from grpo_protocol import ConfigError, load_config
from grpo_protocol.config_input import parse_assignments


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("stop=END", ["END"]),
        ("stop= END ", [" END "]),
        ("stop=\n", ["\n"]),
        ("stop=a,b", ["a,b"]),
        ("stop=]", ["]"]),
        ("stop=[/INST]", ["[/INST]"]),
        ('stop=["a,b", "\\n\\n"]', ["a,b", "\n\n"]),
        ("stop=[]", []),
        ('stop=[","]', [","]),
    ],
)
def test_stop_texts_are_taken_as_they_are_or_as_json(word: str, expected: list[str]) -> None:
    assert load_config({}, parse_assignments([word])).stop == expected


@pytest.mark.parametrize("text", ["a.py,b.py", "[a.py, b.py]", '["a.py", "b.py"]'])
def test_other_lists_may_be_written_with_commas(text: str) -> None:
    assert load_config({}, parse_assignments([f"reward={text}"])).reward == ["a.py", "b.py"]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("beta", "kl_coef"),
        ("num_generations", "group_size"),
        ("epsilon", "clip_epsilon"),
        ("epsilon_high", "clip_epsilon_high"),
        ("per_device_train_batch_size", "batch_size"),
    ],
)
def test_names_of_trl_lead_to_ours(name: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}='1': unknown option; did you mean {ours}\?"):
        load_config({}, {name: "1"})


@pytest.mark.parametrize(
    ("key", "text", "rule"),
    [
        ("max_steps", "ten", "expected a whole number or none"),
        ("top_k", "2.5", "expected a whole number"),
        ("temperature", "hot", "expected a number"),
        ("importance_sampling_level", "seq", "expected one of token, sequence"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_the_right_one(key: str, text: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({}, {key: text})
    assert str(caught.value) == f"{key}='{text}': {rule}"
