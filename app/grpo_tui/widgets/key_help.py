"""The keys of a class as lines of text, read from its bindings."""

from collections.abc import Callable

from textual.binding import Binding
from textual.content import Content
from textual.dom import DOMNode

KeyDisplay = Callable[[Binding], str]


def key_lines(node: type[DOMNode], display: KeyDisplay) -> list[Content]:
    """One line for each action of `node`: its keys, and what it does."""
    actions: dict[str, list[Binding]] = {}
    for binding in Binding.make_bindings(node.BINDINGS):
        if not binding.system:
            actions.setdefault(binding.action, []).append(binding)
    return [_line(bindings, display) for bindings in actions.values()]


def _line(bindings: list[Binding], display: KeyDisplay) -> Content:
    keys = " ".join(dict.fromkeys(display(binding) for binding in bindings))
    text = bindings[0].tooltip or bindings[0].description
    return Content.assemble((f"{keys:>14}", "bold $text-accent"), "  ", text)
