"""Which metrics the list shows, in which order, under which titles and in which units."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from grpo_tui.drawing.formatting import memory, number, percent, seconds
from grpo_tui.sanitize import clean_line
from grpo_tui.state import metric_names as names

TITLE_WIDTH: Final = 13
"""Cells of a title in the list; every title that is made here fits."""

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


def _count(value: float | None) -> str:
    """A number of things, without decimals where it has none."""
    is_short = value is not None and abs(value) < 1000 and value == int(value)
    return f"{value:.0f}" if is_short else number(value)


# Reward first: in GRPO the loss says little more than that it is finite.
_FIRST: Final = (MetricSpec(names.REWARD, "reward", better="up"),)
_LEARNING: Final = (
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
    MetricSpec("clip_ratio/region_mean", "clipped", percent),
    MetricSpec("cispo_clip_ratio", "capped", percent),
    MetricSpec("vespo/phi_seq_mean", "phi"),
    MetricSpec("ratio/mean", "ratio"),
    MetricSpec("ratio/max_deviation", "ratio max dev"),
    MetricSpec("sampling/sampling_logp_difference/mean", "logp gap"),
    MetricSpec(names.LEARNING_RATE, "learn rate"),
    MetricSpec("weight_delta", "weight delta"),
    MetricSpec("reward_coverage", "rewarded", percent, "up"),
)
# What each reward function adds to the line above, which ends `_LEARNING`.
_OF_FUNCTIONS: Final = (
    ("coverage", MetricSpec("", " given", percent, "up")),
    ("std", MetricSpec("", " std")),
)
_DETAILS: Final = (
    MetricSpec("completions/trained_ratio", "trained", percent, "up"),
    MetricSpec("completions/repetition_ratio", "repetitive", percent, "down"),
    MetricSpec("dynamic_sampling/rounds", "rounds", _count),
    MetricSpec("dynamic_sampling/kept_groups", "kept", _count),
    MetricSpec("dynamic_sampling/discarded_groups", "discarded", _count),
    MetricSpec("dynamic_sampling/kept_reward", "kept reward"),
    MetricSpec("rollout/age", "rollout age", _count),
    MetricSpec("policy_loss", "policy loss"),
    MetricSpec("entropy_coef", "entropy coef"),
    MetricSpec(names.MEAN_ADVANTAGE, "adv mean"),
    MetricSpec("advantages/min", "adv min"),
    MetricSpec("advantages/max", "adv max"),
    MetricSpec("clip_ratio/low_mean", "clip low", percent),
    MetricSpec("clip_ratio/low_min", "clip low min", percent),
    MetricSpec("clip_ratio/high_mean", "clip high", percent),
    MetricSpec("clip_ratio/high_max", "clip hi max", percent),
    MetricSpec("sampling/sampling_logp_difference/max", "logp gap max"),
    MetricSpec("sampling/importance_sampling_ratio/mean", "IS mean"),
    MetricSpec("sampling/importance_sampling_ratio/min", "IS min"),
    MetricSpec("sampling/importance_sampling_ratio/max", "IS max"),
    MetricSpec("completions/min_length", "shortest", _count),
    MetricSpec("completions/max_length", "longest", _count),
    MetricSpec("completions/mean_terminated_length", "ended mean"),
    MetricSpec("completions/min_terminated_length", "ended min", _count),
    MetricSpec("completions/max_terminated_length", "ended max", _count),
    MetricSpec(names.PEAK_MEMORY, "peak mem", memory),
    MetricSpec(names.ACTIVE_MEMORY, "active mem", memory),
    MetricSpec(names.STEP_TIME, "step time", _seconds),
    MetricSpec(names.GENERATION_TIME, "gen time", _seconds),
    MetricSpec(names.REWARD_TIME, "reward time", _seconds),
    MetricSpec(names.TRAINING_TIME, "train time", _seconds),
    MetricSpec("num_tokens", "tokens seen"),
    MetricSpec(names.PERPLEXITY, "perplexity"),
    MetricSpec(names.TOKEN_ACCURACY, "tok accuracy", percent),
)
_EVAL: Final = "eval/"
_COMPLETIONS: Final = "/completions/"
_BY_NAME: Final = {spec.name: spec for spec in (*_FIRST, *_LEARNING, *_DETAILS)}


def specs_for(present: Iterable[str]) -> list[MetricSpec]:
    """Reward, its parts, evaluations, what is known, the rest, of the metrics `present`."""
    there = dict.fromkeys(present)
    order = [
        *(spec.name for spec in _FIRST),
        *(name for name in there if _reward_function(name)),
        *(name for name in there if name.startswith(_EVAL) and _COMPLETIONS not in name),
        *(spec.name for spec in _LEARNING),
        *(name for kind, _ in _OF_FUNCTIONS for name in there if _reward_function(name, kind)),
        *(spec.name for spec in _DETAILS),
        *there,
    ]
    return [spec_of(name) for name in dict.fromkeys(order) if name in there]


def spec_of(name: str) -> MetricSpec:
    """How the metric `name` is shown."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    if part := _reward_function(name):
        # Indented, because it is a part of the line above.
        return MetricSpec(name, _titled("  ", part, ""), better="up")
    for kind, spec in _OF_FUNCTIONS:
        if part := _reward_function(name, kind):
            return replace(spec, name=name, title=_titled("  ", part, spec.title))
    if name.startswith(_EVAL):
        return _evaluated(name)
    return MetricSpec(name, clean_line(name))


def _evaluated(name: str) -> MetricSpec:
    """Over held-out prompts: `eval/SET/` and the name that the metric has over training prompts."""
    rest = name.removeprefix(_EVAL)
    is_known = rest in _BY_NAME or _reward_function(rest)
    key = rest if is_known else rest.partition("/")[2] or rest
    if part := _reward_function(key):
        return MetricSpec(name, _titled("eval ", part, ""), better="up")
    spec = _BY_NAME.get(key, MetricSpec(name, key.rpartition("/")[2]))
    return replace(spec, name=name, title=_titled("eval ", spec.title, ""))


def _titled(before: str, text: str, after: str) -> str:
    """All three within the width of a title; a long `text` loses its middle, not its ends."""
    text = clean_line(text)
    room = TITLE_WIDTH - len(before) - len(after)
    if len(text) > room:
        tail = (room - 1) // 3
        text = f"{text[: room - 1 - tail]}~{text[len(text) - tail :]}"
    return before + text + after


def _reward_function(name: str, kind: str = "mean") -> str:
    """The function of whose rewards `name` is the mean, or another `kind`, or nothing."""
    if name.startswith("rewards/") and name.endswith(f"/{kind}"):
        return name.removeprefix("rewards/").removesuffix(f"/{kind}")
    return ""
