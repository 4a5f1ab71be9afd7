"""What must hold before a run may start with its reward functions."""

import math
from collections.abc import Sequence

from grpo_protocol.config_input import ConfigError
from grpo_protocol.config_rules import expect_weights
from grpo_trainer.dataset import Example, column_names
from grpo_trainer.rewards.batch import KEYWORDS
from grpo_trainer.rewards.calling import CallSignature


def check_weights(weights: Sequence[float] | None, names: Sequence[str]) -> list[float]:
    """One finite weight for each function; 1 without any. Raises `ConfigError`."""
    if weights is None:
        return [1.0] * len(names)
    try:
        expect_weights(list(weights), len(names))
    except ValueError as error:
        raise ConfigError(f"{error}: {', '.join(names)}") from error
    if not all(math.isfinite(weight) for weight in weights):
        raise ConfigError(f"reward_weights={list(weights)}: must be finite numbers")
    return list(weights)


def expect_unique(names: Sequence[str]) -> None:
    """Raises `ConfigError` when two functions share the name that scores are filed under."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"reward: {names.count(name)} functions are named `{name}`; rename one, since "
                "scores are kept by name"
            )


def check_signatures(signatures: Sequence[CallSignature], examples: Sequence[Example]) -> None:
    """Raises `ConfigError` for a function with a parameter that nothing fills."""
    columns = column_names(examples)
    for signature in signatures:
        if missing := signature.missing(columns):
            wanted = ", ".join(f"`{name}`" for name in missing)
            raise ConfigError(
                f"reward function `{signature.name}{signature.text}` needs {wanted}; there are "
                f"the columns {', '.join(columns) or 'none'} and {', '.join(KEYWORDS)}; rename "
                "the column or the parameter, or give it a default"
            )
