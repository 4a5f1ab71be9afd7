"""Dropout is in training alone, so nothing may take it for a difference of policies."""

from typing import Any

import pytest

from grpo_protocol import ConfigError, load_config


@pytest.mark.parametrize("reuse", ["num_iterations", "steps_per_generation"])
def test_dropout_with_rollouts_that_are_used_again_is_refused(reuse: str) -> None:
    with pytest.raises(ConfigError, match=r"lora_dropout=0\.1: .* set lora_dropout=0"):
        load_config({"lora_dropout": 0.1, reuse: 2})
    load_config({"lora_dropout": 0.1})
    load_config({reuse: 2})


def test_dropout_with_a_threshold_that_was_found_without_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"lora_dropout=0\.1: top_entropy_quantile picks tokens"):
        load_config({"lora_dropout": 0.1, "top_entropy_quantile": 0.2})
    load_config({"top_entropy_quantile": 0.2})


@pytest.mark.parametrize(
    "setting", [{"mismatch_correction": "token_mask"}, {"off_policy_mask_threshold": 0.5}]
)
def test_dropout_must_not_be_measured_as_mismatch(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(ConfigError, match=rf"lora_dropout=0\.1: {name} would measure dropout"):
        load_config({"lora_dropout": 0.1, **setting})
    load_config(setting)
