"""What a person types to narrow completions: plain words and `reward<0.3 fin:length step:4..9`.

One language for the live samples and for the record; each of them interprets the terms.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, cast

BoundField = Literal["step", "reward", "adv", "tok"]
BoundSign = Literal["<", "<=", ">", ">=", "="]

_COMPARE: Final = re.compile(r"(reward|tok|adv|step)(<=|>=|<|>|=)(-?(?:\d+\.?\d*|\.\d+))", re.ASCII)
_STEPS: Final = re.compile(r"step:(\d{1,15})(?:\.\.(\d{1,15}))?", re.ASCII)
_FINISH: Final = "fin:"


@dataclass(frozen=True)
class Bound:
    """`field` `sign` `value`, such as reward < 0.3; what is unknown lies within no bound."""

    field: BoundField
    sign: BoundSign
    value: float


@dataclass(frozen=True)
class SampleQuery:
    """All bounds, all words and one of the finish reasons must fit. Case does not count."""

    bounds: tuple[Bound, ...] = ()
    finish_reasons: tuple[str, ...] = ()
    """How the finish reason begins: alternatives; none of them allows any."""
    words: tuple[str, ...] = ()
    """Each is found in the prompt or the completion, taken literally."""

    def __bool__(self) -> bool:
        return bool(self.bounds or self.finish_reasons or self.words)


def parse_query(text: str) -> SampleQuery:
    """The terms in `text`; what has not the form of a comparison is a word to look for."""
    bounds: list[Bound] = []
    reasons: list[str] = []
    words: list[str] = []
    for word in text.split():
        if match := _COMPARE.fullmatch(word):
            field, sign, value = match.groups()
            bounds.append(Bound(cast(BoundField, field), cast(BoundSign, sign), float(value)))
        elif match := _STEPS.fullmatch(word):
            low = int(match.group(1))
            high = int(match.group(2) or low)
            bounds += Bound("step", ">=", low), Bound("step", "<=", high)
        elif word.startswith(_FINISH):
            reasons += [word.removeprefix(_FINISH)] if word != _FINISH else []
        else:
            words.append(word)
    return SampleQuery(tuple(bounds), tuple(reasons), tuple(words))
