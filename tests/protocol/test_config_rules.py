"""Settings that contradict one another are refused in one line; their neighbours are not."""

from typing import Any

import pytest

from grpo_protocol import ConfigError, GRPOConfig, load_config, validate_config
from grpo_protocol.config_input import parse_assignments, with_setting
from grpo_protocol.config_rules import expect_weights


def settings(words: str) -> dict[str, str]:
    return parse_assignments(words.split())


def refusal(words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config({}, settings(words))
    return str(caught.value)


# Settings, then the key and value that the line starts with, then what the remedy says.
REFUSED = [
    ("weight_decay=1e6", "weight_decay=1000000.0", "times learning_rate=1e-05 is 1 or more"),
    ("lora_layers=0", "lora_layers=0", "-1 for all, or at least 1"),
    ("lora_layers=-2", "lora_layers=-2", "-1 for all, or at least 1"),
    ("kl_coef=inf", "kl_coef=inf", "must be a finite number"),
    ("delta=inf", "delta=inf", "must be a finite number"),
    ("reward_weights=1,nan", "reward_weights=[1.0, nan]", "must be finite numbers"),
    (
        "reward=r.py:a,r.py:b reward_weights=1",
        "reward_weights=[1.0]",
        "2 reward functions need 2 weights",
    ),
    ("reward_weights=0,0", "reward_weights=[0.0, 0.0]", "give one another weight"),
    (
        "steps_per_generation=3 gradient_accumulation_steps=2",
        "steps_per_generation=3",
        "multiple of gradient_accumulation_steps=2",
    ),
    (
        "steps_per_generation=1 gradient_accumulation_steps=2",
        "steps_per_generation=1",
        "multiple of gradient_accumulation_steps=2",
    ),
    ("max_consecutive_tokens=1", "max_consecutive_tokens=1", "0 for any, or at least 2"),
    ("max_ngram_repeats=1", "max_ngram_repeats=1", "0 for any, or at least 2"),
    (
        "advantage_normalization=false scale_rewards=batch",
        "advantage_normalization=False",
        "set scale_rewards=none, or leave normalization on",
    ),
    *(
        (
            f"multi_objective_aggregation=normalize_then_sum {other}",
            "multi_objective_aggregation='normalize_then_sum'",
            "leave scale_rewards=group and advantage_normalization=true",
        )
        for other in ("scale_rewards=batch", "scale_rewards=none", "advantage_normalization=false")
    ),
    (
        "optimizer_type=sgd",
        "optimizer_type='sgd'",
        "has no default learning rate, because its steps are as large as the gradient",
    ),
    (
        "learning_rate=10 weight_decay=0.1",
        "weight_decay=0.1",
        "times learning_rate=10.0 is 1 or more, so one step would leave nothing of the weights",
    ),
    ("adamw_eps=1e-46", "adamw_eps=1e-46", "use at least 1e-30"),
    ("optimizer_type=muon adamw_eps=1e-31", "adamw_eps=1e-31", "would be divided by 0"),
    (
        "degenerate_filter=true mask_truncated_completions=true",
        "mask_truncated_completions=True",
        "choose one of the two",
    ),
    *(
        (
            f"loss_type={loss} importance_sampling_level=token",
            "importance_sampling_level='token'",
            f"loss_type={loss} is defined on the ratio of the sequence; leave the level out",
        )
        for loss in ("luspo", "gmpo")
    ),
    (
        "loss_type=vespo importance_sampling_level=sequence",
        "importance_sampling_level='sequence'",
        "leave the level out",
    ),
    ("clip_epsilon=1", "clip_epsilon=1.0", "must be below 1"),
    *(
        (
            f"loss_type={loss} clip_epsilon_high=0.28",
            "clip_epsilon_high=0.28",
            f"no effect without a clipped loss; {loss} has its own bounds",
        )
        for loss in ("sapo", "vespo", "gmpo")
    ),
    ("loss_type=cispo clip_epsilon_high=0.28", "clip_epsilon_high=0.28", "use at least 1"),
    *(
        (
            f"loss_type={loss} delta=2",
            "delta=2.0",
            f"no effect without a clipped loss; {loss} has its own bounds",
        )
        for loss in ("cispo", "sapo", "vespo", "gmpo")
    ),
    ("delta=1.2", "delta=1.2", "must be above 1 + the upper clip, here 1.2"),
    ("delta=1.25 clip_epsilon_high=0.28", "delta=1.25", "upper clip, here 1.28"),
    (
        "adaptive_entropy=true entropy_coef=2",
        "entropy_coef=2.0",
        "between entropy_coef_min=0.0 and entropy_coef_max=1.0",
    ),
    (
        "adaptive_entropy=true entropy_coef_min=0.1",
        "entropy_coef=0.0",
        "between entropy_coef_min=0.1 and entropy_coef_max=1.0",
    ),
    (
        "adaptive_entropy=true entropy_coef_min=0.5 entropy_coef_max=0.1",
        "entropy_coef_min=0.5",
        "must not be above entropy_coef_max=0.1",
    ),
    (
        "mismatch_correction=token_mask mismatch_min=4",
        "mismatch_min=4.0",
        "must not be above mismatch_max=3.0",
    ),
]

# Settings, then the first key and value that do nothing, then what they need.
ALLOWED = [
    "lora_layers=-1",
    "lora_layers=1",
    "reward=r.py:a,r.py:b reward_weights=1,0",
    "reward=r.py reward_weights=1,0.5",
    "steps_per_generation=4 gradient_accumulation_steps=2",
    "steps_per_generation=2 gradient_accumulation_steps=2",
    "steps_per_generation=4",
    "gradient_accumulation_steps=2",
    "stop=</answer>,END",
    "max_consecutive_tokens=0 max_ngram_repeats=0",
    "max_consecutive_tokens=2 max_ngram_repeats=2",
    "scale_rewards=batch",
    "advantage_normalization=false",
    "advantage_normalization=false scale_rewards=none",
    "multi_objective_aggregation=normalize_then_sum",
    "dynamic_sampling=true",
    "dynamic_sampling=true dynamic_sampling_metric=reward dynamic_sampling_attempts=5",
    "optimizer_type=sgd learning_rate=0.1 sgd_momentum=0.9",
    "optimizer_type=adafactor",
    "optimizer_type=muon muon_momentum=0.9 adamw_beta1=0.8 adamw_beta2=0.95 adamw_eps=1e-6",
    "learning_rate=9.9 weight_decay=0.1",
    "learning_rate=1000 weight_decay=0",
    "weight_decay=1000",
    "adamw_eps=1e-30",
    "degenerate_filter=true",
    "mask_truncated_completions=true",
    *(f"loss_type={loss}" for loss in ("bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo")),
    *(f"loss_type={loss}" for loss in ("vespo", "gmpo")),
    "importance_sampling_level=token",
    "importance_sampling_level=sequence",
    "loss_type=luspo importance_sampling_level=sequence",
    "loss_type=gmpo importance_sampling_level=sequence",
    "loss_type=vespo importance_sampling_level=token",
    "clip_epsilon=0.99",
    "loss_type=dapo clip_epsilon_high=0.28",
    "loss_type=luspo clip_epsilon_high=0.28 delta=1.3",
    "loss_type=cispo clip_epsilon_high=1",
    "delta=1.21",
    "kl_coef=0.04 kl_bias_correction=true ref_sync_interval=64",
    "entropy_coef=2",
    "adaptive_entropy=true",
    "adaptive_entropy=true entropy_coef=0.1 entropy_coef_min=0.1 entropy_coef_max=0.1",
    "mismatch_correction=token_truncate mismatch_min=3",
    "mismatch_correction=sequence_mask",
    "off_policy_mask_threshold=0.5",
    "lora_rank=4 lora_scale=2 lora_dropout=0.1 lora_layers=4",
    "loss_type=sapo sapo_temperature_pos=2 sapo_temperature_neg=2",
    "loss_type=vespo vespo_k_pos=1 vespo_lambda_pos=1 vespo_k_neg=1 vespo_lambda_neg=1",
    "loss_type=gmpo gmpo_clip=0.2",
    "loss_type=cispo clip_epsilon=0.1",
    "kl_coef=0.1 ref_sync_interval=64 ref_mixup_alpha=0.5",
    "adaptive_entropy=true entropy_target=1 entropy_coef_delta=0.1 entropy_coef_max=2",
    "mismatch_correction=token_mask mismatch_min=0.5 mismatch_max=2",
    "repetition_penalty=1.1 repetition_context_size=64",
    "presence_penalty=-0.5 presence_context_size=64",
    "frequency_penalty=0.5 frequency_context_size=64",
    "ngram_size=4",
    "fine_tune_type=full lora_rank=8 gmpo_clip=0.4 ngram_size=3 mismatch_max=3",
    "top_entropy_quantile=0.2",
]


@pytest.mark.parametrize(("words", "start", "remedy"), REFUSED)
def test_what_cannot_be_meant_is_refused_with_key_value_and_remedy(
    words: str, start: str, remedy: str
) -> None:
    message = refusal(words)
    assert "\n" not in message
    assert message.startswith(f"{start}: ")
    assert remedy in message


@pytest.mark.parametrize("words", ALLOWED)
def test_what_stands_next_to_it_is_allowed(words: str) -> None:
    config = load_config({}, settings(words))
    assert config != GRPOConfig() or words == "lora_layers=-1"
    assert validate_config(config) == config


def test_the_defaults_are_allowed() -> None:
    assert validate_config(load_config()) == GRPOConfig()


def test_an_empty_stop_text_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"stop": ["END", ""]})
    assert str(caught.value).startswith("stop=['END', '']: ")
    assert "leave it out" in str(caught.value)


def test_what_is_built_in_python_is_judged_by_the_same_rules() -> None:
    with pytest.raises(ValueError, match=r"^clip_epsilon=1\.0: must be below 1"):
        GRPOConfig(clip_epsilon=1.0)


@pytest.mark.parametrize(
    "values",
    [
        {"clip_epsilon": "0.2"},
        {"gradient_accumulation_steps": 0, "steps_per_generation": 4},
        {"stop": None},
        {"reward_weights": 1.0, "reward": ["r.py:a"]},
        {"lora_layers": None},
    ],
)
def test_a_value_of_another_type_is_named_once_the_config_is_checked(
    values: dict[str, Any],
) -> None:
    """The rules compare values; one that cannot be compared is for the check of types to name."""
    key, value = next(iter(values.items()))
    built = GRPOConfig(**values)
    with pytest.raises(ConfigError) as caught:
        validate_config(built)
    assert str(caught.value).startswith(f"{key}={value!r}: expected ")


def test_a_live_setting_is_judged_together_with_the_others() -> None:
    config = load_config({}, settings("delta=1.3"))
    assert with_setting(config, "temperature", "0.5").temperature == 0.5
    with pytest.raises(ConfigError, match=r"^delta=1\.3: must be above"):
        with_setting(config, "clip_epsilon_high", "0.4")


def test_one_weight_for_each_function_is_expected() -> None:
    expect_weights([1.0, 0.0], 2)
    for weights in ([], [1.0], [1.0, 1.0, 1.0]):
        with pytest.raises(ValueError, match="2 reward functions need 2 weights"):
            expect_weights(weights, 2)


@pytest.mark.parametrize("name", ["clip_epsilon", "clip_epsilon_high"])
def test_a_clip_that_rounds_away_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}=1e-09: .* use at least 1e-06"):
        load_config({name: 1e-9})
    load_config({name: 1e-4})


def test_a_top_k_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"top_k=1: .* use 0 for all, or at least 2"):
        load_config({"top_k": 1})
    load_config({"top_k": 2})
