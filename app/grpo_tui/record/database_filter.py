"""What a person asks of a run's completions: an order, words, `reward<0.3 fin:length step:4..9`.

The same language as the filter of the live samples; here it becomes a question to the record.
"""

import re
from dataclasses import replace
from typing import Final, cast, get_args

from grpo_tui.record.database_rows import (
    Bound,
    BoundField,
    BoundSign,
    GenerationOrder,
    GenerationQuery,
)

MAX_WORDS: Final = 8
ORDERS: Final[tuple[GenerationOrder, ...]] = get_args(GenerationOrder)
REVERSED: Final[dict[GenerationOrder, GenerationOrder]] = {
    "newest": "oldest",
    "oldest": "newest",
    "best": "worst",
    "worst": "best",
}
_COMPARE: Final = re.compile(r"(reward|tok|adv|step)(<=|>=|<|>|=)(-?(?:\d+\.?\d*|\.\d+))")
_STEPS: Final = re.compile(r"step:(\d{1,15})(?:\.\.(\d{1,15}))?")


def narrowed(query: GenerationQuery, text: str) -> GenerationQuery:
    """`query` with the filter that `text` describes, in place of the one it had."""
    query = replace(query, bounds=(), finish_reason="", words=())
    for word in text.split()[:MAX_WORDS]:
        query = _add(query, word)
    return query


def neighbour(order: GenerationOrder, direction: int) -> GenerationOrder:
    """The order after `order`, or before it for -1; the last is followed by the first."""
    return ORDERS[(ORDERS.index(order) + direction) % len(ORDERS)]


def _add(query: GenerationQuery, word: str) -> GenerationQuery:
    if match := _COMPARE.fullmatch(word):
        field, sign, value = match.groups()
        bound = Bound(cast(BoundField, field), cast(BoundSign, sign), float(value))
        return replace(query, bounds=(*query.bounds, bound))
    if match := _STEPS.fullmatch(word):
        low = int(match.group(1))
        high = int(match.group(2) or low)
        between = Bound("step", ">=", low), Bound("step", "<=", high)
        return replace(query, bounds=(*query.bounds, *between))
    if word.startswith("fin:"):
        return replace(query, finish_reason=word.removeprefix("fin:"))
    return replace(query, words=(*query.words, word))
