"""Deals rows out to batches that are decoded at once. Shapes: P prompts, G completions each."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

DecodingMode = Literal["together", "equal lengths", "alone"]
"""Which rows share a forward pass while they are decoded: all, which needs caches that know a
position for each row; those whose prompts are of one length, so that all are always at one
position; or none."""


class RowBatch(NamedTuple):
    """Rows that are decoded at once: as many of each of its prompts."""

    prompts: Sequence[Sequence[int]]
    rows_each: int
    row_numbers: list[int]
    """Among the P·G rows in prompt order."""


def row_batches(
    prompts: Sequence[Sequence[int]], group_size: int, mode: DecodingMode, most: int | None = None
) -> Iterator[RowBatch]:
    """Every row in one batch, of `most` rows at most; None for as many as `mode` allows.

    Whole groups as far as they fit, so that a prompt is read once; parts of one where not.
    """
    for places in _decodable_at_once(prompts, mode):
        size = 1 if mode == "alone" else most or len(places) * group_size
        whole_groups = size // group_size
        for start in range(0, len(places), max(1, whole_groups)):
            some = places[start : start + max(1, whole_groups)]
            for first in range(0, group_size, size):
                members = range(first, min(first + size, group_size))
                rows = [place * group_size + member for place in some for member in members]
                yield RowBatch([prompts[place] for place in some], len(members), rows)


def _decodable_at_once(
    prompts: Sequence[Sequence[int]], mode: DecodingMode
) -> Iterator[Sequence[int]]:
    """Places of prompts whose rows may share a forward pass, if there is room for them."""
    if mode == "equal lengths":
        yield from places_by_length(prompts)
    else:
        yield range(len(prompts))


def places_by_length(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Places of the prompts of each length, in the order in which the lengths occur."""
    found: dict[int, list[int]] = {}
    for place, prompt in enumerate(prompts):
        found.setdefault(len(prompt), []).append(place)
    return list(found.values())
