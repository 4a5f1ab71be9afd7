"""The query of the Samples tab, asked of the completions that are held."""

import operator
from collections.abc import Callable, Sequence
from typing import Final

from grpo_tui.sample_query import Bound, BoundField, BoundSign, parse_query
from grpo_tui.state.samples import Sample

_COMPARISONS: Final[dict[BoundSign, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
}
_FIELDS: Final[dict[BoundField, Callable[[Sample], float | None]]] = {
    "reward": lambda sample: sample.reward,
    "tok": lambda sample: sample.tokens,
    "adv": lambda sample: sample.advantage,
    "step": lambda sample: sample.step,
}


def narrow(samples: Sequence[Sample], text: str) -> list[Sample]:
    """Samples that fit the query in `text`."""
    query = parse_query(text)
    reasons = tuple(reason.lower() for reason in query.finish_reasons)
    words = [word.lower() for word in query.words]
    return [
        sample
        for sample in samples
        if all(_is_within(sample, bound) for bound in query.bounds)
        and (not reasons or (sample.finish_reason or "").lower().startswith(reasons))
        and _holds(sample, words)
    ]


def _is_within(sample: Sample, bound: Bound) -> bool:
    value = _FIELDS[bound.field](sample)
    return value is not None and _COMPARISONS[bound.sign](value, bound.value)


def _holds(sample: Sample, words: Sequence[str]) -> bool:
    if not words:
        return True
    completion, prompt = sample.completion.lower(), sample.prompt.lower()
    return all(word in completion or word in prompt for word in words)
