"""Ways to cut a language model in two: token ids to hidden states, hidden states to logits.

Neither half knows whether the cut is right. Shapes: B rows, T tokens, N tokens of any rows, H
hidden, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import mlx.core as mx

from grpo_trainer.replaced_method import replace_method


class Cut(Protocol):
    """One way to cut a model. Either half may raise when the model cannot be cut this way."""

    def hidden(self, ids_B_T: mx.array) -> mx.array:
        """Hidden states [B, T, H]."""

    def logits(self, hidden_N_H: mx.array) -> mx.array:
        """Logits [N, V] of hidden states at any positions."""


class CutAfterBackbone:
    """The backbone alone, and the model run on a backbone that returns given hidden states."""

    def __init__(self, model: Any, backbone: Any) -> None:
        self._model = model
        self._backbone = backbone

    def hidden(self, ids_B_T: mx.array) -> mx.array:
        """Hidden states [B, T, H] after the last layer and its norm."""
        states: mx.array = self._backbone(ids_B_T)
        return states

    def logits(self, hidden_N_H: mx.array) -> mx.array:
        """Logits [N, V]."""
        states = hidden_N_H[None]
        with _method(self._backbone, "__call__", lambda *_, **__: states):
            logits: mx.array = self._model(mx.zeros(states.shape[:2], dtype=mx.int32))
        return logits[0]


class _Pass(NamedTuple):
    """What a head is given and makes of it, and what the model makes of that."""

    states: mx.array
    made: mx.array
    logits: mx.array


class CutBeforeHead:
    """The input of the head as the model calls it, and the model run on a head that is given one.

    Both halves run the whole model and rely on what is never asked for never being computed: the
    logits in the first, the layers in the second.
    """

    def __init__(self, model: Any, head: Any) -> None:
        self._model = model
        self._head = head
        # An embedding goes on embedding.
        self._method = "as_linear" if hasattr(head, "as_linear") else "__call__"
        self._apply: Callable[[Any, mx.array], mx.array] = getattr(type(head), self._method)

    def hidden(self, ids_B_T: mx.array) -> mx.array:
        """Hidden states [B, T, H]. Raises `ValueError` unless the head is called once, on them."""
        return self._run(ids_B_T).states

    def logits(self, hidden_N_H: mx.array) -> mx.array:
        """Logits [N, V]."""
        # Rows of one token, because some layers loop over the tokens of a row.
        ids = mx.zeros((hidden_N_H.shape[0], 1), dtype=mx.int32)
        return self._run(ids, hidden_N_H).logits.squeeze(1)

    def _run(self, ids_B_T: mx.array, given_N_H: mx.array | None = None) -> _Pass:
        """The model, and its head on the states that the model gives it or on those given here."""
        calls: list[tuple[mx.array, mx.array]] = []

        def call(head: Any, states: mx.array) -> mx.array:
            if given_N_H is None:
                made = self._apply(head, states)
            else:
                made = self._apply(head, given_N_H[None]).swapaxes(0, 1)
            calls.append((states, made))
            return made

        with _method(self._head, self._method, call):
            logits: mx.array = self._model(ids_B_T)
        if len(calls) != 1:
            raise ValueError(f"the head is called {len(calls)} times")
        states, made = calls[0]
        if states.shape[:-1] != ids_B_T.shape:
            raise ValueError(f"the head is given {states.shape} for ids {ids_B_T.shape}")
        return _Pass(states, made, logits)


class CutBeforeLastHead(CutBeforeHead):
    """The same where the head is the last thing that the model calls, and so is a half by itself.

    It makes logits without the time that it takes to go through a model's layers, even though
    nothing in them is computed.
    """

    def hidden(self, ids_B_T: mx.array) -> mx.array:
        """Hidden states [B, T, H]. Raises `ValueError` when something comes after the head too."""
        found = self._run(ids_B_T)
        if found.made is not found.logits:
            raise ValueError("the model changes what the head makes")
        return found.states

    def logits(self, hidden_N_H: mx.array) -> mx.array:
        """Logits [N, V]."""
        return self._apply(self._head, hidden_N_H[None])[0]


@contextmanager
def _method(module: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Inside the block `function` is this method of this module, and of no other of its class."""
    undo = replace_method(module, name, function)
    try:
        yield
    finally:
        undo()
