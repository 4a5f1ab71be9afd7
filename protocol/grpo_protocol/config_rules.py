"""Settings that contradict one another."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_protocol.config_needs import settings_without_effect
from grpo_protocol.settings.loss import SEQUENCE_LOSSES
from grpo_protocol.settings.optimizer import DEFAULT_LEARNING_RATES

if TYPE_CHECKING:
    from grpo_protocol.config import GRPOConfig


_LEAST_CLIP = 1e-6
_LEAST_EPS = 1e-30


def check_together(config: "GRPOConfig") -> None:
    """Raises `ValueError` with one line for the first thing in `config` that cannot be meant."""
    try:
        complaint = next(_complaints(config), None)
    except (TypeError, KeyError, ZeroDivisionError):
        # Types and bounds of single values are judged elsewhere, by name.
        return
    if complaint:
        raise ValueError(complaint)


def expect_weights(weights: list[float], num_rewards: int) -> None:
    """Raises `ValueError` unless there is one weight for each reward function."""
    if len(weights) != num_rewards:
        raise ValueError(
            f"reward_weights={weights}: {num_rewards} reward functions need {num_rewards} weights"
        )


def _complaints(config: "GRPOConfig") -> Iterator[str]:
    yield from _not_finite(config)
    if config.lora_layers < -1 or config.lora_layers == 0:
        yield f"lora_layers={config.lora_layers}: use -1 for all, or at least 1"
    yield from _weights(config)
    yield from settings_without_effect(config)
    yield from _rollouts(config)
    yield from _dropout(config)
    yield from _repetition(config)
    yield from _advantages(config)
    yield from _ratio(config)
    yield from _regularization(config)
    yield from _mismatch(config)
    yield from _optimizer(config)


def _optimizer(config: "GRPOConfig") -> Iterator[str]:
    if config.optimizer_type == "sgd" and config.learning_rate is None:
        yield (
            "optimizer_type='sgd': has no default learning rate, because its steps are as large as "
            "the gradient; set learning_rate"
        )
    rate = config.learning_rate or DEFAULT_LEARNING_RATES[config.fine_tune_type]
    if rate * config.weight_decay >= 1:
        yield (
            f"weight_decay={config.weight_decay}: times learning_rate={rate} is 1 "
            "or more, so one step would leave nothing of the weights; lower one of them"
        )
    if config.adamw_eps < _LEAST_EPS:
        yield (
            f"adamw_eps={config.adamw_eps}: vanishes in float32, and weights without gradient "
            f"would be divided by 0; use at least {_LEAST_EPS}"
        )
    if config.max_steps is not None and config.warmup_steps >= config.max_steps:
        yield (
            f"warmup_steps={config.warmup_steps}: must be fewer than max_steps={config.max_steps}, "
            "or the learning rate never reaches its peak"
        )


def _not_finite(config: "GRPOConfig") -> Iterator[str]:
    for name in config.__struct_fields__:
        value = getattr(config, name)
        numbers = value if isinstance(value, list) else [value]
        if not all(math.isfinite(item) for item in numbers if isinstance(item, float)):
            kind = "finite numbers" if isinstance(value, list) else "a finite number"
            yield f"{name}={value}: must be {kind}"


def _weights(config: "GRPOConfig") -> Iterator[str]:
    weights = config.reward_weights
    if weights is None:
        return
    if config.reward and all(":" in name for name in config.reward):
        expect_weights(weights, len(config.reward))
    if weights and not any(weights):
        yield f"reward_weights={weights}: every reward would be 0; give one another weight"


def _rollouts(config: "GRPOConfig") -> Iterator[str]:
    per_generation, per_step = config.steps_per_generation, config.gradient_accumulation_steps
    if per_generation is not None and per_generation % per_step:
        yield (
            f"steps_per_generation={per_generation}: must be a multiple of "
            f"gradient_accumulation_steps={per_step}, or rollouts would be split between updates"
        )
    if config.top_k == 1:
        yield "top_k=1: every completion of a group would be the same; use 0 for all, or at least 2"
    if "" in config.stop:
        yield f"stop={config.stop}: an empty text would end every completion; leave it out"


def _dropout(config: "GRPOConfig") -> Iterator[str]:
    dropout = config.lora_dropout
    if dropout and config.reuses_rollouts:
        yield (
            f"lora_dropout={dropout}: the ratio of rollouts that are used again would "
            "measure dropout instead of the update; set lora_dropout=0, or num_iterations=1 and "
            "no steps_per_generation"
        )
    if dropout and config.top_entropy_quantile < 1:
        yield (
            f"lora_dropout={dropout}: top_entropy_quantile picks tokens by entropies without "
            "dropout; set one of them to its default"
        )

    measuring = {
        "mismatch_correction": config.mismatch_correction != "none",
        "off_policy_mask_threshold": config.off_policy_mask_threshold is not None,
    }
    for name, is_on in measuring.items():
        if dropout and is_on:
            yield (
                f"lora_dropout={dropout}: {name} would measure dropout, which sampling has not; "
                "set one of them to its default"
            )


def _repetition(config: "GRPOConfig") -> Iterator[str]:
    for name in ("max_consecutive_tokens", "max_ngram_repeats"):
        if getattr(config, name) == 1:
            yield f"{name}=1: would end every completion at once; use 0 for any, or at least 2"


def _advantages(config: "GRPOConfig") -> Iterator[str]:
    scale = config.scale_rewards
    if not config.advantage_normalization and scale == "batch":
        yield (
            "advantage_normalization=False: contradicts scale_rewards='batch'; "
            "set scale_rewards=none, or leave normalization on"
        )
    if config.multi_objective_aggregation == "normalize_then_sum" and (
        scale != "group" or not config.advantage_normalization
    ):
        yield (
            "multi_objective_aggregation='normalize_then_sum': scales each reward by its group; "
            "leave scale_rewards=group and advantage_normalization=true"
        )
    if config.degenerate_filter and config.mask_truncated_completions:
        yield (
            "mask_truncated_completions=True: degenerate_filter drops these completions already; "
            "choose one of the two"
        )


def _ratio(config: "GRPOConfig") -> Iterator[str]:
    loss, level = config.loss_type, config.importance_sampling_level
    if loss in SEQUENCE_LOSSES and level == "token":
        yield (
            f"importance_sampling_level='token': loss_type={loss} is defined on the ratio of the "
            "sequence; leave the level out"
        )
    if loss == "vespo" and level == "sequence":
        yield (
            "importance_sampling_level='sequence': loss_type=vespo weighs the sequence itself; "
            "leave the level out"
        )
    for name in ("clip_epsilon", "clip_epsilon_high"):
        value = getattr(config, name)
        if value is not None and value < _LEAST_CLIP:
            yield f"{name}={value}: rounds to no room at all in float32; use at least {_LEAST_CLIP}"
    if config.clip_epsilon >= 1:
        yield (f"clip_epsilon={config.clip_epsilon}: must be below 1, or no ratio is clipped low")
    if loss == "cispo" and config.clip_epsilon_high is not None and config.clip_epsilon_high < 1:
        yield (
            f"clip_epsilon_high={config.clip_epsilon_high}: for loss_type=cispo it is the cap of "
            "the ratio itself; use at least 1, or leave it out for 5"
        )
    if config.delta is not None:
        bound = 1 + (config.clip_epsilon_high or config.clip_epsilon)
        if config.delta <= bound:
            yield f"delta={config.delta}: must be above 1 + the upper clip, here {bound:g}"


def _regularization(config: "GRPOConfig") -> Iterator[str]:
    if config.adaptive_entropy:
        low, high = config.entropy_coef_min, config.entropy_coef_max
        if low > high:
            yield f"entropy_coef_min={low}: must not be above entropy_coef_max={high}"
        if not low <= config.entropy_coef <= high:
            yield (
                f"entropy_coef={config.entropy_coef}: must start between entropy_coef_min={low} "
                f"and entropy_coef_max={high}"
            )


def _mismatch(config: "GRPOConfig") -> Iterator[str]:
    low, high = config.mismatch_min, config.mismatch_max
    if low is not None and low > high:
        yield f"mismatch_min={low}: must not be above mismatch_max={high}"
