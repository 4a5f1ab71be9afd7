"""Log-probs and entropies of completions, and gradients through them, in bounded memory.

Logits are made for completion positions only, never for prompt and padding. When those of a whole
batch of rows are too many, they are made piece by piece, once for the scores and once more for the
gradients, and none outlives its piece: the loss needs only the scores. Shapes: B rows, T target
positions, N completion tokens of all rows, H hidden, V vocabulary.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map_with_path

from grpo_protocol.settings.memory import MemorySettings
from grpo_trainer.distribution import Distribution
from grpo_trainer.layer_checkpointing import checkpointed_layers, expect_equal_gradients
from grpo_trainer.policy import Policy
from grpo_trainer.split_forward import SplitForward, head_parameters
from grpo_trainer.token_scores import score_logits, score_tokens
from grpo_trainer.training_rows import RowTensors
from grpo_trainer.trees import ParameterTree, leaves

LOGITS_AT_ONCE = 2**25
"""Most logits that are held with their graph: 128 MiB in float32."""
LOGITS_A_PIECE = 2**23
"""Logits of one piece when they are more: 32 MiB in float32."""


class Scores(NamedTuple):
    """Of the target tokens; outside completions without meaning."""

    logprobs_B_T: mx.array
    entropy_B_T: mx.array


LossOf = Callable[[Scores], tuple[mx.array, Any]]
"""From the scores to the loss, a scalar, and whatever else is wanted of them."""


class _Tokens(NamedTuple):
    """What a batch asks of its completion tokens."""

    targets_N: mx.array
    history_N_C: mx.array | None
    lengths: tuple[int, ...]
    """Of each row; they add up to N."""


class CompletionScorer:
    """Scores completions with the weights that are installed in a policy's model.

    The group `Memory` of `config` decides how much is held at once. Raises `ModelError` when the
    model cannot be trained with checkpointed layers, which `config` asks for.
    """

    def __init__(self, policy: Policy, config: MemorySettings) -> None:
        self._policy = policy
        self._memory = config
        self._split = SplitForward.of(policy.model)
        if config.gradient_checkpointing:
            expect_equal_gradients(policy.model)

    @cached_property
    def _head(self) -> frozenset[str]:
        """Found when it is first needed: it takes a gradient of the whole head."""
        assert self._split is not None
        return head_parameters(self._policy.model, self._split)

    def scores(self, batch: RowTensors, distribution: Distribution) -> Scores:
        """The scores, evaluated, without gradients."""
        split = self._split
        if split is None or self._fits(batch):
            found = self._at_once(batch, distribution, entropy_gradient=False)
        else:
            tokens = _tokens_of(batch, distribution)
            hidden_N_H = _completion_states(split, batch)
            found = _scattered(self._by_pieces(hidden_N_H, tokens, distribution, seed=0), batch)
        mx.eval(found)
        return found

    def loss_and_gradients(
        self,
        batch: RowTensors,
        distribution: Distribution,
        loss_of: LossOf,
        *,
        entropy_gradient: bool,
        seed: int,
    ) -> tuple[mx.array, Any, ParameterTree]:
        """The loss, what `loss_of` gives besides, and the gradients of the policy's weights.

        `seed` decides what dropout drops.
        """
        pieces = self._split is not None and not self._fits(batch)
        compute = self._gradients_by_pieces if pieces else self._gradients_at_once
        with checkpointed_layers(self._policy.model, wanted=self._memory.gradient_checkpointing):
            found = compute(
                batch, distribution, loss_of, entropy_gradient=entropy_gradient, seed=seed
            )
        # Tracing leaves its own copies of the weights in the model.
        self._policy.install(self._policy.weights)
        return found

    def _gradients_at_once(
        self,
        batch: RowTensors,
        distribution: Distribution,
        loss_of: LossOf,
        *,
        entropy_gradient: bool,
        seed: int,
    ) -> tuple[mx.array, Any, ParameterTree]:
        def loss_of_weights(weights: ParameterTree) -> tuple[mx.array, Any]:
            self._policy.install(weights)
            return loss_of(self._at_once(batch, distribution, entropy_gradient=entropy_gradient))

        mx.random.seed(seed)
        (loss, rest), gradients = mx.value_and_grad(loss_of_weights)(self._policy.weights)
        return loss, rest, gradients

    def _fits(self, batch: RowTensors) -> bool:
        assert self._split is not None
        most_rows = self._memory.lm_head_chunk_size
        if most_rows is not None and len(batch.lengths) > most_rows:
            return False
        return batch.num_tokens * self._split.vocabulary <= LOGITS_AT_ONCE

    def _at_once(
        self, batch: RowTensors, distribution: Distribution, *, entropy_gradient: bool
    ) -> Scores:
        if self._split is None:
            return Scores(
                *score_tokens(
                    self._policy.model,
                    batch,
                    distribution,
                    entropy_gradient=entropy_gradient,
                    vocab_chunk_size=self._memory.vocab_chunk_size,
                )
            )
        tokens = _tokens_of(batch, distribution)
        hidden_N_H = _completion_states(self._split, batch)
        found = self._piece(
            hidden_N_H, tokens, slice(None), distribution, entropy_gradient=entropy_gradient
        )
        return _scattered(found, batch)

    # --- piece by piece

    def _gradients_by_pieces(
        self,
        batch: RowTensors,
        distribution: Distribution,
        loss_of: LossOf,
        *,
        entropy_gradient: bool,
        seed: int,
    ) -> tuple[mx.array, Any, ParameterTree]:
        """The chain rule by hand, because what autograd has seen lives until its end."""
        split = self._split
        assert split is not None
        tokens = _tokens_of(batch, distribution)
        mx.random.seed(seed)
        hidden_N_H = _completion_states(split, batch)
        mx.eval(hidden_N_H)
        found = self._by_pieces(hidden_N_H, tokens, distribution, seed)
        scores = _scattered(found, batch)

        def of_scores(logprobs_B_T: mx.array, entropy_B_T: mx.array) -> tuple[mx.array, Any]:
            return loss_of(Scores(logprobs_B_T, entropy_B_T))

        (loss, rest), slopes = mx.value_and_grad(of_scores, argnums=(0, 1))(*scores)
        slopes_N = [slope.reshape(-1)[batch.places_N] for slope in slopes]
        mx.eval(loss, rest, slopes_N)
        hidden_slope_N_H, head_slopes = self._head_gradients(
            hidden_N_H, tokens, distribution, slopes_N, entropy_gradient=entropy_gradient, seed=seed
        )

        def through_backbone(weights: ParameterTree) -> mx.array:
            self._policy.install(weights)
            return (_completion_states(split, batch) * hidden_slope_N_H).sum()

        mx.random.seed(seed)
        gradients = mx.grad(through_backbone)(self._policy.weights)
        gradients = tree_map_with_path(
            lambda name, slope: slope + head_slopes.get(name, 0.0), gradients
        )
        return loss, rest, gradients

    def _by_pieces(
        self, hidden_N_H: mx.array, tokens: _Tokens, distribution: Distribution, seed: int
    ) -> Scores:
        found = []
        for index, part in enumerate(self._parts(tokens)):
            mx.random.seed(_piece_seed(seed, index))
            piece = self._piece(hidden_N_H[part], tokens, part, distribution)
            mx.eval(piece)
            found.append(piece)
        return Scores(*(mx.concatenate(list(values)) for values in zip(*found, strict=True)))

    def _head_gradients(
        self,
        hidden_N_H: mx.array,
        tokens: _Tokens,
        distribution: Distribution,
        slopes_N: list[mx.array],
        *,
        entropy_gradient: bool,
        seed: int,
    ) -> tuple[mx.array, dict[str, mx.array]]:
        """Gradients of the hidden states [N, H], and of the head's parameters by name."""
        head = {name: w for name, w in leaves(self._policy.weights) if name in self._head}
        names = list(head)
        hidden_slopes: list[mx.array] = []
        total: list[mx.array] = []
        for index, part in enumerate(self._parts(tokens)):

            def piece(
                states: mx.array, *weights: mx.array, part: slice = part, index: int = index
            ) -> list[mx.array]:
                self._policy.install_named(dict(zip(names, weights, strict=True)))
                mx.random.seed(_piece_seed(seed, index))
                return list(
                    self._piece(
                        states, tokens, part, distribution, entropy_gradient=entropy_gradient
                    )
                )

            primals = [hidden_N_H[part], *head.values()]
            _, (of_states, *of_head) = mx.vjp(piece, primals, [s[part] for s in slopes_N])
            total = of_head if not total else [a + b for a, b in zip(total, of_head, strict=True)]
            mx.eval(of_states, total)
            hidden_slopes.append(of_states)
        return mx.concatenate(hidden_slopes), dict(zip(names, total, strict=True))

    def _piece(
        self,
        states_M_H: mx.array,
        tokens: _Tokens,
        part: slice,
        distribution: Distribution,
        *,
        entropy_gradient: bool = False,
    ) -> Scores:
        """Scores [M] of the tokens in `part`, from their hidden states."""
        assert self._split is not None
        history = None if tokens.history_N_C is None else tokens.history_N_C[part]
        targets_M = tokens.targets_N[part]
        logits_M_V = distribution.logits(self._split.logits(states_M_H), history, targets_M)
        return Scores(
            *score_logits(
                logits_M_V,
                targets_M,
                entropy_gradient=entropy_gradient,
                vocab_chunk_size=self._memory.vocab_chunk_size,
            )
        )

    def _parts(self, tokens: _Tokens) -> Iterator[slice]:
        """Spans of tokens whose logits are not too many, nor of more rows than is wished."""
        assert self._split is not None
        size = max(1, LOGITS_A_PIECE // self._split.vocabulary)
        rows_at_once = self._memory.lm_head_chunk_size or len(tokens.lengths)
        start = 0
        for first in range(0, len(tokens.lengths), rows_at_once):
            end = start + sum(tokens.lengths[first : first + rows_at_once])
            for place in range(start, end, size):
                yield slice(place, min(place + size, end))
            start = end


def _tokens_of(batch: RowTensors, distribution: Distribution) -> _Tokens:
    history = distribution.histories(batch.inputs_B_T)
    if history is not None:
        history = history.reshape(-1, history.shape[-1])[batch.places_N]
    return _Tokens(batch.targets_B_T.reshape(-1)[batch.places_N], history, batch.lengths)


def _completion_states(split: SplitForward, batch: RowTensors) -> mx.array:
    """Hidden states [N, H] that the completion tokens are predicted from."""
    states_B_T_H = split.hidden(batch.inputs_B_T)
    return states_B_T_H.reshape(-1, states_B_T_H.shape[-1])[batch.places_N]


def _scattered(found: Scores, batch: RowTensors) -> Scores:
    """Scores [N] as [B, T], 0 elsewhere."""
    empty = mx.zeros(batch.targets_B_T.size)
    shape = batch.targets_B_T.shape
    return Scores(*(empty.at[batch.places_N].add(values).reshape(shape) for values in found))


def _piece_seed(seed: int, index: int) -> int:
    return (seed + 1 + index) % 2**64
