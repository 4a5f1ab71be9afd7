"""Which metrics the list shows, in which order, under which titles and in which units."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from grpo_tui.drawing.formatting import memory, number, percent, seconds
from grpo_tui.sanitize import clean_line
from grpo_tui.state import metric_names as names

Better = Literal["up", "down", ""]
"""In which direction a metric improves, where that can be said."""


@dataclass(frozen=True)
class MetricSpec:
    """How one metric is shown."""

    name: str
    title: str
    format: Callable[[float | None], str] = number
    better: Better = ""


def _seconds(value: float | None) -> str:
    return seconds(None if value is None else value * 1000)


# Reward first: in GRPO the loss says little more than that it is finite.
_FIRST: Final = (MetricSpec(names.REWARD, "reward", better="up"),)
_KNOWN: Final = (
    MetricSpec(names.REWARD_STD, "reward std"),
    MetricSpec(names.ZERO_STD, "zero-spread", percent, "down"),
    MetricSpec(names.LENGTH, "length"),
    MetricSpec(names.TRUNCATED, "truncated", percent, "down"),
    MetricSpec(names.KL, "KL"),
    MetricSpec(names.ENTROPY, "entropy"),
    MetricSpec(names.LOSS, "loss"),
    MetricSpec(names.ADVANTAGE_STD, "adv std"),
    MetricSpec(names.GRAD_NORM, "grad norm"),
    MetricSpec(names.TOKENS_PER_SECOND, "tok/s"),
    MetricSpec(names.PEAK_MEMORY, "peak mem", memory),
    MetricSpec(names.ACTIVE_MEMORY, "active mem", memory),
    MetricSpec(names.LEARNING_RATE, "learn rate"),
    MetricSpec(names.STEP_TIME, "step time", _seconds),
    MetricSpec(names.GENERATION_TIME, "gen time", _seconds),
    MetricSpec(names.REWARD_TIME, "reward time", _seconds),
    MetricSpec(names.TRAINING_TIME, "train time", _seconds),
    MetricSpec(names.PERPLEXITY, "perplexity"),
    MetricSpec(names.TOKEN_ACCURACY, "tok accuracy", percent),
)
_EVAL: Final = "eval/"
_COMPLETIONS: Final = "/completions/"
_BY_NAME: Final = {spec.name: spec for spec in (*_FIRST, *_KNOWN)}


def specs_for(present: Iterable[str]) -> list[MetricSpec]:
    """Reward, its parts, evaluations, what is known, the rest, of the metrics `present`."""
    there = dict.fromkeys(present)
    parts = [name for name in there if _reward_function(name)]
    evaluations = [name for name in there if name.startswith(_EVAL) and _COMPLETIONS not in name]
    known = [spec for spec in _KNOWN if spec.name in there]
    shown = {*_BY_NAME, *parts, *evaluations}
    rest = [name for name in there if name not in shown]
    return [
        *(spec for spec in _FIRST if spec.name in there),
        *map(spec_of, (*parts, *evaluations)),
        *known,
        *map(spec_of, rest),
    ]


def spec_of(name: str) -> MetricSpec:
    """How the metric `name` is shown."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    if part := _reward_function(name):
        # Indented, because it is a part of the line above.
        return MetricSpec(name, clean_line(f"  {part}"), better="up")
    if reward := _evaluated_reward(name):
        return MetricSpec(name, clean_line(f"eval {reward}"), better="up")
    if name.startswith(_EVAL):
        return MetricSpec(name, clean_line(f"eval {name.rpartition('/')[2]}"))
    return MetricSpec(name, clean_line(name))


def _evaluated_reward(name: str) -> str:
    """`reward`, or the function, whose mean over held-out prompts `name` is, or nothing."""
    if not name.startswith(_EVAL):
        return ""
    _, _, key = name.removeprefix(_EVAL).partition("/")
    return key if key == names.REWARD else _reward_function(key)


def _reward_function(name: str) -> str:
    """The function whose mean reward `name` is, or nothing."""
    if name.startswith("rewards/") and name.endswith("/mean"):
        return name.removeprefix("rewards/").removesuffix("/mean")
    return ""
