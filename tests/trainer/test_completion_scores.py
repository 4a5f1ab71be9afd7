"""Scores and gradients do not depend on how many logits are held at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from grpo_trainer import completion_scores
from grpo_trainer.learner import Learner, StepGradient
from grpo_trainer.split_forward import SplitForward
from grpo_trainer.trees import leaves, number
from learners import (
    config_of,
    copy_of,
    largest_difference,
    learner_by_position,
    make_learner,
    make_rows,
)
from tiny_model import VOCABULARY

SETTINGS: dict[str, dict[str, Any]] = {
    "lora": {},
    "full": {"fine_tune_type": "full"},
    "bfloat16": {"fine_tune_type": "full", "dtype": "bfloat16"},
    "entropy bonus": {"fine_tune_type": "full", "entropy_coef": 0.1},
    "penalties and filters": {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "top_p": 0.8},
    "top entropy": {"top_entropy_quantile": 0.5},
}


@contextmanager
def pieces_of(tokens: int) -> Iterator[list[int]]:
    """Logits of so many tokens at a time; gives the sizes of the pieces that were made."""
    made: list[int] = []
    whole = SplitForward.logits

    def counted(self: SplitForward, hidden_N_H: mx.array) -> mx.array:
        made.append(hidden_N_H.shape[0])
        return whole(self, hidden_N_H)

    with (
        patch.object(completion_scores, "LOGITS_AT_ONCE", 0),
        patch.object(completion_scores, "LOGITS_A_PIECE", tokens * VOCABULARY),
        patch.object(SplitForward, "logits", counted),
    ):
        yield made


def learner_of(settings: dict[str, Any]) -> Learner:
    learner = make_learner(**settings)
    # Adapters that add nothing would hide dropout.
    learner.policy.adopt(tree_map(lambda w: w + 0.01, learner.policy.weights))
    return learner


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_P03_pieces_give_the_loss_and_gradients_of_the_whole(settings: dict[str, Any]) -> None:
    config = config_of(clip_epsilon=0.2, **settings)
    learner = learner_of(settings)
    whole = learner.gradient([make_rows()], config, seed=7)
    with pieces_of(5):
        learner.gradient([make_rows()], config, seed=7)  # what the head is, is found but once
    with pieces_of(5) as made:
        found = learner.gradient([make_rows()], config, seed=7)
    tolerance = 1e-2 if settings.get("dtype") == "bfloat16" else 1e-5
    assert set(made) == {5, 1}  # 36 tokens
    assert number(found.loss) == pytest.approx(number(whole.loss), abs=1e-6)
    scale = max(number(mx.abs(slope).max()) for _, slope in leaves(whole.gradients))
    assert difference(found, whole) < tolerance * scale


def test_dropout_is_the_same_for_scores_and_gradients() -> None:
    """The gradient of the loss at hand: a step along it changes the loss as it says."""
    settings: dict[str, Any] = {"lora_dropout": 0.3}
    config = config_of(**settings, loss_type="cispo")
    learner = learner_of(settings)
    with pieces_of(5):
        found = learner.gradient([make_rows()], config, seed=7)
        squared = sum(number(s.square().sum()) for _, s in leaves(found.gradients))
        size = 1e-3 / squared**0.5

        def loss_at(factor: float) -> float:
            moved = tree_map(
                lambda w, g: w + factor * size * g, learner.policy.weights, found.gradients
            )
            start = learner.policy.weights
            learner.policy.adopt(moved)
            loss = number(learner.gradient([make_rows()], config, seed=7).loss)
            learner.policy.adopt(start)
            return loss

        rise = (loss_at(1.0) - loss_at(-1.0)) / 2
    assert rise == pytest.approx(size * squared, rel=0.05)


def test_logits_are_made_for_completions_only() -> None:
    tokens = sum(len(row.completion_ids) for row in make_rows())
    learner = make_learner()
    with pieces_of(1000) as made:
        learner.gradient([make_rows()], config_of())
    assert made == [tokens, tokens]


def test_scores_alone_come_in_pieces_too() -> None:
    rows = make_rows()
    config = config_of(num_iterations=2)
    learner = make_learner()
    whole = learner.with_logprobs(rows, config)
    with pieces_of(4) as made:
        found = learner.with_logprobs(rows, config)
    assert set(made) == {4}  # 36 tokens
    for one, other in zip(found, whole, strict=True):
        assert one.old_logprobs == pytest.approx(other.old_logprobs, abs=1e-5)


def test_a_model_that_cannot_be_split_is_scored_whole() -> None:
    config = config_of()
    learner = learner_by_position(config, vocabulary=266)
    with pieces_of(3) as made:
        found = learner.gradient([make_rows()[:2]], config)
    assert made == []
    assert number(found.loss) == number(found.loss)
    assert any(number(mx.abs(slope).max()) > 0 for _, slope in leaves(found.gradients))


def difference(one: StepGradient, other: StepGradient) -> float:
    return largest_difference(copy_of(one.gradients), copy_of(other.gradients))
