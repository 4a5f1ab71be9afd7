"""Which arrangement of the screen fits a terminal of a given size."""

from typing import Final, Literal

Layout = Literal["wide", "middle", "narrow", "tiny", "micro"]

LAYOUTS: Final[tuple[Layout, ...]] = ("wide", "middle", "narrow", "tiny", "micro")


def layout_for(width: int, height: int) -> Layout:
    """From `wide` (two panes) down to `micro` (the state and how to quit)."""
    if width < 20 or height < 5:
        return "micro"
    if width < 60 or height < 16:
        return "tiny"
    if width < 100 or height < 30:
        return "narrow"
    return "wide" if width >= 120 else "middle"
