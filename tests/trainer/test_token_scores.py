"""Log-probs and entropies of tokens, where a model leaves some out itself."""

import math

import mlx.core as mx
import pytest

from grpo_trainer.token_scores import score_logits

MASKED = mx.array([[0.0, -math.inf, math.log(3.0), -math.inf], [-math.inf, 5.0, -math.inf, 5.0]])
TARGETS = mx.array([2, 1])


def test_tokens_that_a_model_masks_itself_have_no_part_in_the_entropy() -> None:
    logprobs, entropy = score_logits(MASKED, TARGETS)
    assert logprobs.tolist() == pytest.approx([math.log(0.75), math.log(0.5)], abs=1e-6)
    expected = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)
    assert entropy.tolist() == pytest.approx([expected, math.log(2)], abs=1e-6)


def test_gradients_of_masked_tokens_are_zero_and_those_of_the_others_the_same_as_without() -> None:
    def total(logits: mx.array, targets: mx.array) -> mx.array:
        logprobs, entropy = score_logits(logits, targets, entropy_gradient=True)
        return (2 * logprobs + 3 * entropy).sum()

    found = mx.grad(total)(MASKED, TARGETS).tolist()
    bare = mx.grad(total)(mx.array([[0.0, math.log(3.0)], [5.0, 5.0]]), mx.array([1, 0])).tolist()
    expected = [[bare[0][0], 0, bare[0][1], 0], [0, bare[1][0], 0, bare[1][1]]]
    for line, wanted in zip(found, expected, strict=True):
        assert line == pytest.approx(wanted, abs=1e-6)
