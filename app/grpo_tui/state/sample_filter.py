"""What a person types to narrow the samples: plain words and `reward<0.3 fin:length step:4..9`."""

import operator
import re
from collections.abc import Callable, Sequence
from typing import Final

from grpo_tui.state.samples import Sample

Test = Callable[[Sample], bool]

_COMPARE: Final = re.compile(r"(reward|tok|adv|step)(<=|>=|<|>|=)(-?[0-9.]+)")
_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
}
_STEPS: Final = re.compile(r"step:(\d+)(?:\.\.(\d+))?")
_FIELDS: Final[dict[str, Callable[[Sample], float | None]]] = {
    "reward": lambda sample: sample.reward,
    "tok": lambda sample: sample.tokens,
    "adv": lambda sample: sample.advantage,
    "step": lambda sample: sample.step,
}


def narrow(samples: Sequence[Sample], query: str) -> list[Sample]:
    """Samples that pass every word of `query`; words are looked for in prompt and completion."""
    tests = [_test(word) for word in query.split()]
    return [sample for sample in samples if all(test(sample) for test in tests)]


def _test(word: str) -> Test:
    if match := _COMPARE.fullmatch(word):
        name, sign, text = match.groups()
        try:
            limit = float(text)
        except ValueError:
            return _contains(word)
        return _compares(_FIELDS[name], _OPERATORS[sign], limit)
    if match := _STEPS.fullmatch(word):
        low = int(match.group(1))
        high = int(match.group(2) or low)
        return lambda sample: low <= sample.step <= high
    if word.startswith("fin:"):
        reason = word.removeprefix("fin:")
        return lambda sample: (sample.finish_reason or "").startswith(reason)
    return _contains(word)


def _compares(
    field: Callable[[Sample], float | None], compare: Callable[[float, float], bool], limit: float
) -> Test:
    def test(sample: Sample) -> bool:
        value = field(sample)
        return value is not None and compare(value, limit)

    return test


def _contains(word: str) -> Test:
    lower = word.lower()
    return lambda sample: lower in sample.completion.lower() or lower in sample.prompt.lower()
