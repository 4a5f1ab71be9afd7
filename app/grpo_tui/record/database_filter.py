"""The orders and the filter of a record's completions, as a person changes them."""

from dataclasses import replace
from typing import Final, get_args

from grpo_tui.record.database_rows import GenerationOrder, GenerationQuery
from grpo_tui.sample_query import parse_query

ORDERS: Final[tuple[GenerationOrder, ...]] = get_args(GenerationOrder)
REVERSED: Final[dict[GenerationOrder, GenerationOrder]] = {
    "newest": "oldest",
    "oldest": "newest",
    "best": "worst",
    "worst": "best",
}


def narrowed(query: GenerationQuery, text: str) -> GenerationQuery:
    """`query` with the filter that `text` describes, in place of the one it had."""
    return replace(query, filter=parse_query(text))


def neighbour(order: GenerationOrder, direction: int) -> GenerationOrder:
    """The order after `order`, or before it for -1; the last is followed by the first."""
    return ORDERS[(ORDERS.index(order) + direction) % len(ORDERS)]
