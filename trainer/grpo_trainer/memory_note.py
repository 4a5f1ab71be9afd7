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
"""Shares of the machine's memory."""
_WORTH_NAMING = 0.05
"""Share of the peak that a remedy has to save."""


def memory_note(
    sizes: RunSizes, config: GRPOConfig, memory: int | None = None
) -> tuple[LogLevel, str]:
    """One line for the log, and how much it should worry people."""
    memory = memory or machine_memory()
    estimate = estimate_memory(sizes, config)
    share = estimate.peak / memory
    verdict = "fits" if share < _TIGHT else "tight" if share < _FULL else "will not fit"
    line = (
        f"memory: about {_size(estimate.peak)} of {_size(memory)} at the peak "
        f"(weights {_size(estimate.weights)}, training state {_size(estimate.training_state)}, "
        f"then rollouts {_size(estimate.rollouts)} or training {_size(estimate.training)}): "
        f"{verdict}"
    )
    if verdict == "fits":
        return "info", line
    help_ = ", ".join(_remedies(sizes, config, estimate)) or "a smaller or a quantized model"
    return "warn", f"{line}; what would help: {help_}"


def _remedies(sizes: RunSizes, config: GRPOConfig, now: MemoryEstimate) -> Iterator[str]:
    """Settings that would lower the peak, those that save most first."""
    found = []
    for changes in _candidates(sizes, config):
        saved = now.peak - _estimate_with(changes, sizes, config).peak
        if saved > _WORTH_NAMING * now.peak:
            words = " ".join(f"{key}={_typed(value)}" for key, value in changes.items())
            found.append((saved, f"{words} (saves {_size(saved)})"))
    found.sort(reverse=True)
    yield from (words for _, words in found)
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
        if not config.gradient_checkpointing:
            yield {"gradient_checkpointing": True, "forward_chunk_size": 1}
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
