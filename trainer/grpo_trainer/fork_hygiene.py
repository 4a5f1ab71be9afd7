"""Descriptors that a forked child must not keep open: it may outlive the trainer."""

import os
import weakref
from typing import Protocol


class HoldsDescriptors(Protocol):
    """Owner of descriptors that belong to this process alone."""

    def forget_in_child(self) -> None:
        """Called in a forked child: closes the child's copies and does nothing else."""
        ...


held_by_this_process: "weakref.WeakSet[HoldsDescriptors]" = weakref.WeakSet()
"""Owners add themselves while they hold descriptors; in a forked child it is empty."""


def _forget_all() -> None:
    for owner in list(held_by_this_process):
        owner.forget_in_child()
    held_by_this_process.clear()


os.register_at_fork(after_in_child=_forget_all)
