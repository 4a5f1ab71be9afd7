"""What the app's tick asks of a screen that shows the run."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class ShowsState(Protocol):
    """A screen that redraws itself from the run state."""

    def show_state(self, *, changed: bool) -> None:
        """Redraws what is visible; without `changed` only what moves with the clock."""
