"""The settings: declared once, described, checked, and shown from `init`."""

import itertools
import math
from typing import Any

import msgspec
import pytest

from grpo_protocol import ConfigError, GRPOConfig, decode_event, load_config, validate_config
from grpo_protocol.config import config_keys, config_values, live_keys
from grpo_protocol.config_input import with_setting
from grpo_protocol.messages import Init


def refusal(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(values)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_every_key_has_a_description_a_group_and_its_default() -> None:
    keys = config_keys()
    assert [key.name for key in keys] == list(GRPOConfig.__struct_fields__)
    default = GRPOConfig()
    for key in keys:
        assert len(key.description) > 10, key.name
        assert key.description.endswith("."), key.name
        assert key.group
        assert getattr(default, key.name) == key.default


def test_a_key_names_the_words_that_can_be_set() -> None:
    choices = {key.name: key.choices for key in config_keys() if key.choices}
    assert choices["fine_tune_type"] == ("lora", "dora", "full")
    assert choices["importance_sampling_level"] == ("token", "sequence")
    assert choices["mismatch_correction"][0] == "none"
    assert set(choices) == {
        "fine_tune_type",
        "dtype",
        "scale_rewards",
        "multi_objective_aggregation",
        "loss_type",
        "importance_sampling_level",
        "mismatch_correction",
        "optimizer_type",
        "lr_schedule",
        "sample_display",
        "on_dashboard_exit",
    }
    for name, words in choices.items():
        assert ", ".join(words) in refusal(**{name: "no such word"})


def test_a_section_is_described_by_its_keys() -> None:
    (section,) = [key for key in config_keys() if key.keys]
    store = section.default
    assert section.name == "output_store"
    assert [key.name for key in section.keys] == ["output_store.enabled", "output_store.local_path"]
    assert [key.default for key in section.keys] == [store.enabled, store.local_path]
    for key in section.keys:
        assert (key.group, key.live) == (section.group, False)
        assert len(key.description) > 10


def test_keys_of_a_group_stand_together() -> None:
    groups = [key.group for key in config_keys()]
    changes = sum(before != after for before, after in itertools.pairwise(groups))
    assert changes + 1 == len(set(groups))


def test_the_live_keys_are_those_that_a_step_reads_anew() -> None:
    assert set(live_keys()) == {
        "temperature",
        "learning_rate",
        "gradient_clip_norm",
        "save_interval",
        "eval_interval",
        "log_interval",
        "sample_display",
    }


def test_defaults_are_valid() -> None:
    assert validate_config(GRPOConfig()) == GRPOConfig()
    assert load_config() == GRPOConfig()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("group_size", 1),
        ("group_size", 0),
        ("group_size", -2),
        ("group_size", 2.5),
        ("group_size", "4"),
        ("group_size", None),
        ("group_size", True),
        ("batch_size", 0),
        ("learning_rate", "1e-6"),
        ("learning_rate", -1.0),
        ("learning_rate", 0.0),
        ("temperature", 0.0),
        ("max_completion_length", 0),
        ("max_completion_length", -1),
        ("adamw_beta1", 1.0),
        ("clip_epsilon", 1.0),
        ("lora_layers", 0),
        ("lora_layers", -2),
        ("loss_type", "ppo"),
        ("seed", -1),
        ("save_interval", -1),
        ("reward", "r.py"),
    ],
)
def test_M03_W60_E16_a_value_that_cannot_be_is_named_with_its_key(key: str, value: Any) -> None:
    assert f"{key}={value!r}" in refusal(**{key: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["learning_rate", "temperature", "weight_decay", "lora_scale"])
def test_E16_a_number_that_is_not_finite_is_refused(key: str, value: float) -> None:
    assert key in refusal(**{key: value})
    settings: dict[str, Any] = {key: value}
    with pytest.raises(ValueError, match=key):
        validate_config(GRPOConfig(**settings))


def test_weights_fit_the_named_rewards() -> None:
    assert "need 2 weights" in refusal(reward=["r.py:a", "r.py:b"], reward_weights=[1.0])
    load_config({"reward": ["r.py"], "reward_weights": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("max_stesp", "max_steps"),
        ("group-size", "group_size"),
        ("loraRank", "lora_rank"),
        ("lr", "learning_rate"),
        ("target_modules", "lora_keys"),
        ("qqq", "--help"),
    ],
)
def test_E17_an_unknown_key_is_refused_with_a_suggestion(key: str, suggestion: str) -> None:
    message = refusal(**{key: 1})
    assert f"{key}=1: unknown option" in message
    assert suggestion in message


def test_an_unknown_key_of_a_section_is_named_with_it() -> None:
    assert "output_store.enabeld=False: unknown option; did you mean output_store.enabled?" in (
        refusal(output_store={"enabeld": False})
    )


def test_building_checks_no_bound_and_validating_does() -> None:
    with pytest.raises(ConfigError, match="group_size=1"):
        validate_config(GRPOConfig(group_size=1))


def test_a_setting_is_set_from_text_with_every_check() -> None:
    config = with_setting(GRPOConfig(), "learning_rate", "1e-6")
    assert config.learning_rate == 1e-6
    assert with_setting(config, "learning_rate", "none").learning_rate is None
    with pytest.raises(ConfigError, match="temperature='abc'"):
        with_setting(config, "temperature", "abc")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ({"max_steps": "8"}, 8),
        ({"max_steps": "none"}, None),
        ({"shuffle": "off"}, False),
        ({"enable_thinking": "true"}, True),
        ({"reward": "a.py,b.py"}, ["a.py", "b.py"]),
        ({"reward_weights": "1,0.5"}, [1.0, 0.5]),
        ({"run_name": "8"}, "8"),
        ({"temperature": "1"}, 1.0),
    ],
)
def test_text_becomes_the_type_of_its_key(text: dict[str, str], value: Any) -> None:
    (key,) = text
    assert getattr(load_config({}, text), key) == value


def test_a_dotted_key_reaches_into_its_section() -> None:
    config = load_config({"output_store": {"local_path": "x.db"}}, {"output_store.enabled": "no"})
    assert (config.output_store.enabled, config.output_store.local_path) == (False, "x.db")


# --- in `init`


def test_W26_all_settings_travel_in_camel_case() -> None:
    config = GRPOConfig(model="m", learning_rate=1e-6)
    values = msgspec.to_builtins(config_values(config))
    assert set(values) == {_camel(key.name) for key in config_keys()} | {"trainingType"}
    assert values["learningRate"] == 1e-6
    assert values["trainingType"] == "grpo"


def sent_in(line: bytes) -> dict[str, Any]:
    """The settings that `line` tells, an `init` event."""
    event = decode_event(line)
    assert isinstance(event, Init), event
    fields = msgspec.structs.asdict(event.config)
    return {name: value for name, value in fields.items() if value is not msgspec.UNSET}


def test_settings_of_another_trainer_are_shown_and_not_judged() -> None:
    line = (
        b'{"type":"init","model":"m","config":{"trainingType":"grpo","numEpochs":1,"batchSize":0,'
        b'"groupSize":1,"learningRate":1e-6,"lossType":"ppo","maxNewTokens":5}}'
    )
    assert sent_in(line) == {
        "training_type": "grpo",
        "num_epochs": 1,
        "batch_size": 0,
        "group_size": 1,
        "learning_rate": 1e-6,
        "loss_type": "ppo",
    }


def test_the_section_of_another_trainer_is_read_in_its_own_spelling() -> None:
    line = (
        b'{"type":"init","model":"m","config":{"outputStore":{"enabled":true,'
        b'"localPath":"runs/a.db","remoteUrl":"libsql://x","syncInterval":60}}}'
    )
    store = sent_in(line)["output_store"]
    assert (store.enabled, store.local_path) == (True, "runs/a.db")


def test_ours_is_written_in_the_same_spelling() -> None:
    config = load_config({"output_store": {"local_path": "x.db"}})
    sent = msgspec.to_builtins(config_values(config))["outputStore"]
    assert sent == {"enabled": True, "localPath": "x.db"}


@pytest.mark.parametrize("value", ['"0.7"', '{"start":1}', "[1,2]", "null", "true", "123456789012"])
@pytest.mark.parametrize("key", ["temperature", "groupSize", "reward", "runName", "outputStore"])
def test_a_setting_of_an_odd_type_does_not_lose_the_others(key: str, value: str) -> None:
    line = f'{{"type":"init","model":"m","config":{{"{key}":{value},"seed":5}}}}'
    sent = sent_in(line.encode())
    assert sent["seed"] == 5
    assert len(sent) == 2


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
