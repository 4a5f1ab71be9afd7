"""Says before the first step whether a run will fit into memory, and what would help if not."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec

from grpo_protocol.config import GRPOConfig
from grpo_protocol.messages import LogLevel
from grpo_protocol.settings.model import ADAPTER_TYPES
from grpo_trainer.machine_memory import machine_memory
from grpo_trainer.memory_estimate import MemoryEstimate, RunSizes, estimate_memory

_TIGHT, _FULL = 0.70, 0.85
"""Shares of the memory: an estimate can be off, and others need some too."""
_WORTH_NAMING = 0.05
"""Share of the peak that a remedy has to save."""


def memory_note(
    sizes: RunSizes, config: GRPOConfig, memory: int | None = None
) -> tuple[LogLevel, str]:
    """One line for the log, and how much it should worry people."""
    memory = memory or machine_memory()
    estimate = estimate_memory(sizes, config)
    line = (
        f"memory: up to about {_size(estimate.peak)} of {_size(memory)} when completions are as "
        f"long as they may (weights {_size(estimate.weights)}, training state "
        f"{_size(estimate.training_state)}, then rollouts {_size(estimate.rollouts)} or training "
        f"{_size(estimate.training)}): {_verdict(estimate, memory)}"
    )
    if estimate.peak < _TIGHT * memory:
        return "info", line
    help_ = ", ".join(_remedies(sizes, config, estimate, memory))
    return "warn", f"{line}; what would help: {help_ or 'a smaller or a quantized model'}"


def _verdict(estimate: MemoryEstimate, memory: int) -> str:
    share = estimate.peak / memory
    return "fits" if share < _TIGHT else "tight" if share < _FULL else "will not fit"


def _remedies(
    sizes: RunSizes, config: GRPOConfig, now: MemoryEstimate, memory: int
) -> Iterator[str]:
    """Settings that would lower the peak, those that save most first."""
    found: dict[frozenset[str], tuple[int, str]] = {}
    for changes in _candidates(sizes, config):
        changed = _estimate_with(changes, sizes, config)
        saved = now.peak - changed.peak
        parts = (already for keys, (already, _) in found.items() if keys < changes.keys())
        if saved > max(parts, default=0) + _WORTH_NAMING * now.peak:
            words = " ".join(f"{key}={_typed(value)}" for key, value in changes.items())
            told = f"{words} (saves {_size(saved)}: {_verdict(changed, memory)})"
            found[frozenset(changes)] = (saved, told)
    yield from (words for _, words in sorted(found.values(), reverse=True))
    if now.weights > now.peak / 2:
        yield "a smaller or a quantized model"


def _candidates(sizes: RunSizes, config: GRPOConfig) -> Iterator[dict[str, Any]]:
    if config.use_parallel_batch_generation:
        chunk = config.generation_chunk_size or sizes.rows
        if chunk > config.group_size:
            yield {"generation_chunk_size": config.group_size}
        elif chunk > 1:
            yield {"generation_chunk_size": max(1, chunk // 2)}
    if not config.gradient_checkpointing:
        yield {"gradient_checkpointing": True}
    if config.forward_chunk_size != 1:
        yield {"forward_chunk_size": 1}
    if not config.gradient_checkpointing and config.forward_chunk_size != 1:
        yield {"gradient_checkpointing": True, "forward_chunk_size": 1}
        if sizes.rows > 1:
            yield {
                "generation_chunk_size": min(config.group_size, sizes.rows),
                "gradient_checkpointing": True,
                "forward_chunk_size": 1,
            }
    if config.max_completion_length > 1:
        yield {"max_completion_length": config.max_completion_length // 2}
    if config.fine_tune_type not in ADAPTER_TYPES:
        yield {"fine_tune_type": "lora"}
        if config.optimizer_type == "adamw":
            yield {"optimizer_type": "adafactor"}


def _estimate_with(changes: dict[str, Any], sizes: RunSizes, config: GRPOConfig) -> MemoryEstimate:
    """Adapters are small next to everything else, and so is Adafactor's state."""
    if "fine_tune_type" in changes:
        sizes = dataclasses.replace(sizes, trainable=0, separate_masters=False, optimizer_state=0)
    elif "optimizer_type" in changes:
        sizes = dataclasses.replace(sizes, optimizer_state=0)
    else:
        config = msgspec.structs.replace(config, **changes)
    return estimate_memory(sizes, config)


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _size(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.{0 if size >= 10 * factor else 1}f} {unit}"
    return "0 MB"
