"""Cases in which the project departs from TRL on purpose, each by something that can be named."""

from collections.abc import Iterator
from typing import Any

from .trl_cases import LOSSES, Case

MASKED: dict[str, dict[str, Any]] = {
    name: {**LOSSES[name], "mask_truncated_completions": True, "kl_coef": 0.1} for name in LOSSES
}
WINDOW: dict[str, Any] = {"gradient_accumulation_steps": 2, "steps_per_generation": 4}
"""A rollout that feeds two optimizer steps."""
STEP_WIDE: dict[str, dict[str, Any]] = {
    "entropy_quantile": {"top_entropy_quantile": 0.4},
    "entropy_bonus": {"entropy_coef": 0.05},
}
"""What TRL takes from each micro-batch and the project from the whole step."""


def masked_cases() -> Iterator[Case]:
    """Truncated completions masked, in one micro-batch and in four."""
    for loss, settings in MASKED.items():
        yield Case(f"masked-{loss}", "qwen3", settings)
        if loss != "bnpo":  # its micro-batches are other ones once rows are gone
            accumulated = {**settings, "gradient_accumulation_steps": 4}
            yield Case(f"masked-{loss}-accumulation4", "qwen3", accumulated)


def window_cases() -> Iterator[Case]:
    """The first of the two steps that a rollout feeds, made again with other weights."""
    for loss, settings in LOSSES.items():
        yield Case(f"window-{loss}", "qwen3", {**settings, **WINDOW, "kl_coef": 0.1})


def step_wide_cases() -> Iterator[tuple[Case, Case]]:
    """In one micro-batch, and in four."""
    for name, settings in STEP_WIDE.items():
        shared = {"loss_type": "dapo", **settings}
        accumulated = {**shared, "gradient_accumulation_steps": 4}
        yield (
            Case(f"whole-{name}", "qwen3", shared),
            Case(f"accumulated-{name}", "qwen3", accumulated),
        )


CISPO_DEFAULTS = Case("cispo_defaults", "qwen3", {"loss_type": "cispo"}, off_policy=False)
UNFILTERED = Case("unfiltered", "qwen3", {"loss_type": "dapo"}, off_policy=False)
FILTERED = Case("filtered", "qwen3", {"loss_type": "dapo", "top_p": 0.7}, off_policy=False)


def difference_cases() -> Iterator[Case]:
    """What TRL has to run for them."""
    yield from masked_cases()
    yield from window_cases()
    for pair in step_wide_cases():
        yield from pair
    yield from (CISPO_DEFAULTS, UNFILTERED, FILTERED)
