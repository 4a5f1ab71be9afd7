"""Bounds that several keys share, and what is said about each key."""

from typing import Annotated

from msgspec import Meta


def key(group: str, description: str, *, live: bool = False) -> Meta:
    """What help and the Config tab show of a key; `live` marks what `SET` may change."""
    return Meta(description=description, extra={"group": group, "live": live})


Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Interval = Annotated[int, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]
Proportion = Annotated[float, Meta(gt=0, le=1)]
