"""Commands that reach a run between two of its steps, without a process around it."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from grpo_protocol.messages import Event, Step
from grpo_trainer.control import Control
from library_runs import Library


def send_after_steps(
    library: Library, monkeypatch: pytest.MonkeyPatch, commands: Mapping[int, Sequence[str]]
) -> None:
    """Sends the lines of `commands[step]` once `step` is done."""
    controls: list[Control] = []
    init = Control.__init__

    def remember(self: Control, *args: Any) -> None:
        init(self, *args)
        controls.append(self)

    monkeypatch.setattr(Control, "__init__", remember)

    def send(event: Event) -> None:
        if isinstance(event, Step):
            for line in commands.get(event.step, ()):
                controls[-1].receive(line.encode())

    library.trainer._reporter.listen(send)
