"""Settings that would be accepted and change nothing."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from grpo_protocol.settings.loss import CLIPPED_LOSSES
from grpo_protocol.settings.model import ADAPTER_TYPES

if TYPE_CHECKING:
    from grpo_protocol.config import GRPOConfig


class _Need(NamedTuple):
    """Keys that do nothing unless `is_met`; `what` says what to set, and may name the loss."""

    keys: tuple[str, ...]
    what: str
    is_met: Callable[["GRPOConfig"], bool]


_NEEDS = [
    _Need(
        ("lora_rank", "lora_scale", "lora_dropout", "lora_layers", "lora_keys", "adapter_path"),
        "fine_tune_type=lora or dora",
        lambda config: config.fine_tune_type in ADAPTER_TYPES,
    ),
    _Need(
        ("adamw_beta1", "adamw_beta2", "adamw_eps"),
        "optimizer_type=adamw or muon",
        lambda config: config.optimizer_type in ("adamw", "muon"),
    ),
    _Need(("sgd_momentum",), "optimizer_type=sgd", lambda config: config.optimizer_type == "sgd"),
    _Need(
        ("muon_momentum",), "optimizer_type=muon", lambda config: config.optimizer_type == "muon"
    ),
    _Need(
        ("generation_chunk_size",),
        "use_parallel_batch_generation",
        lambda config: config.use_parallel_batch_generation,
    ),
    _Need(
        ("dynamic_sampling_metric", "dynamic_sampling_attempts"),
        "dynamic_sampling=true",
        lambda config: config.dynamic_sampling,
    ),
    _Need(
        ("clip_epsilon_high",),
        "a clipped loss; {loss_type} has its own bounds",
        lambda config: config.loss_type in CLIPPED_LOSSES | {"cispo"},
    ),
    _Need(
        ("delta",),
        "a clipped loss; {loss_type} has its own bounds",
        lambda config: config.loss_type in CLIPPED_LOSSES,
    ),
    _Need(
        ("sapo_temperature_pos", "sapo_temperature_neg"),
        "loss_type=sapo",
        lambda config: config.loss_type == "sapo",
    ),
    _Need(
        ("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
        "loss_type=vespo",
        lambda config: config.loss_type == "vespo",
    ),
    _Need(("gmpo_clip",), "loss_type=gmpo", lambda config: config.loss_type == "gmpo"),
    _Need(
        ("kl_bias_correction", "ref_sync_interval"),
        "kl_coef above 0",
        lambda config: config.kl_coef > 0,
    ),
    _Need(("ref_mixup_alpha",), "ref_sync_interval", lambda config: config.ref_sync_interval > 0),
    _Need(
        ("entropy_target", "entropy_coef_delta", "entropy_coef_min", "entropy_coef_max"),
        "adaptive_entropy=true",
        lambda config: config.adaptive_entropy,
    ),
    _Need(
        ("mismatch_min", "mismatch_max"),
        "mismatch_correction",
        lambda config: config.mismatch_correction != "none",
    ),
    _Need(
        ("repetition_context_size",),
        "repetition_penalty",
        lambda config: config.repetition_penalty != 1,
    ),
    _Need(
        ("presence_context_size",), "presence_penalty", lambda config: config.presence_penalty != 0
    ),
    _Need(
        ("frequency_context_size",),
        "frequency_penalty",
        lambda config: config.frequency_penalty != 0,
    ),
    _Need(("ngram_size",), "max_ngram_repeats", lambda config: config.max_ngram_repeats > 0),
]


def settings_without_effect(config: "GRPOConfig") -> Iterator[str]:
    """A line for each setting that is not at its default and needs another one to matter."""
    defaults = {field.name: _default(field) for field in msgspec.structs.fields(config)}
    for need in _NEEDS:
        if need.is_met(config):
            continue
        for name in need.keys:
            value = getattr(config, name)
            if value != defaults[name]:
                what = need.what.format(loss_type=config.loss_type)
                yield f"{name}={value!r}: has no effect without {what}"


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
