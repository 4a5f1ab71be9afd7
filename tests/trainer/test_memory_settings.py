"""What bounds memory changes how much is held at once, and never the result."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from grpo_protocol import GRPOConfig
from grpo_trainer import row_chunks
from grpo_trainer.learner import Learner
from grpo_trainer.split_forward import SplitForward
from grpo_trainer.trees import number
from learners import (
    LOSS_TYPES,
    config_of,
    copy_of,
    cut,
    largest,
    largest_difference,
    learner_by_position,
    make_learner,
    make_rows,
    off_policy_rows,
)
from tiny_model import VOCABULARY, Kind

BOUNDS: dict[str, dict[str, Any]] = {
    "one row at a time": {"forward_chunk_size": 1},
    "three rows at a time": {"forward_chunk_size": 3},
    "logits of two rows": {"lm_head_chunk_size": 2},
    "vocabulary in parts": {"vocab_chunk_size": 100},
    "checkpoints": {"gradient_checkpointing": True},
    "everything": {
        "forward_chunk_size": 3,
        "lm_head_chunk_size": 1,
        "vocab_chunk_size": 7,
        "gradient_checkpointing": True,
    },
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    **{loss: {"loss_type": loss} for loss in LOSS_TYPES},
    "entropy bonus, top entropy": {"entropy_coef": 0.1, "top_entropy_quantile": 0.5},
    "KL": {"kl_coef": 0.1},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.2},
}


def learner_with(kind: Kind = "qwen3", **settings: Any) -> Learner:
    """One whose adapters already add something."""
    learner = make_learner(kind, **settings)
    learner.policy.adopt(tree_map(lambda w: w + 0.01, learner.policy.weights))
    return learner


@contextmanager
def passes_of(seen: list[tuple[int, ...]]) -> Iterator[None]:
    """Notes the shape of the ids of every pass through the backbone."""
    hidden = SplitForward.hidden

    def noted(self: SplitForward, ids_B_T: mx.array) -> mx.array:
        seen.append(tuple(ids_B_T.shape))
        return hidden(self, ids_B_T)

    with patch.object(SplitForward, "hidden", noted):
        yield


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
def test_W46_P03_loss_gradient_and_metrics_are_those_of_the_whole(
    bound: dict[str, Any], objective: dict[str, Any]
) -> None:
    whole = learner_with(**objective)
    rows = off_policy_rows(whole, config_of(**objective))
    batches = cut(rows, (6, 2))  # bnpo divides by the tokens of each
    expected = whole.gradient(batches, config_of(**objective))
    config = config_of(**bound, **objective)
    found = learner_with(**bound, **objective).gradient(batches, config)
    # vespo weighs by an exponential of sums over the row, which magnifies the last bits.
    tolerance = 1e-5 if config.loss_type == "vespo" else 1e-6
    assert number(found.loss) == pytest.approx(number(expected.loss), abs=tolerance)
    scale = largest(copy_of(expected.gradients))
    assert scale > 1e-3
    difference = largest_difference(copy_of(found.gradients), copy_of(expected.gradients))
    assert difference <= 5 * tolerance * max(scale, 1.0)
    for name in ("entropy", "ratio", "mismatch"):
        assert found.sums.mean(name) == pytest.approx(expected.sums.mean(name), abs=1e-6)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_checkpoints_train_every_weight_in_full_fine_tuning(kind: Kind) -> None:
    settings: dict[str, Any] = {"fine_tune_type": "full"}
    expected = copy_of(
        make_learner(kind, **settings).gradient([make_rows()], config_of()).gradients
    )
    learner = make_learner(kind, gradient_checkpointing=True, **settings)
    found = copy_of(learner.gradient([make_rows()], config_of()).gradients)
    assert largest_difference(found, expected) <= 1e-6 * max(1.0, largest(expected)) * 5
    for name, slope in found.items():
        assert number(mx.abs(slope).max()) > 0, name


@pytest.mark.parametrize("bound", [{}, {"lm_head_chunk_size": 2}], ids=["at once", "in pieces"])
def test_dropout_drops_the_same_when_a_layer_is_computed_once_more(bound: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"lora_dropout": 0.3, **bound}
    expected = learner_with(**settings).gradient([make_rows()], config_of(**settings), seed=7)
    other = learner_with(**settings).gradient([make_rows()], config_of(**settings), seed=8)
    settings["gradient_checkpointing"] = True
    found = learner_with(**settings).gradient([make_rows()], config_of(**settings), seed=7)
    scale = largest(copy_of(expected.gradients))
    same = largest_difference(copy_of(found.gradients), copy_of(expected.gradients))
    assert same <= 5e-6 * max(scale, 1.0)
    unlike = largest_difference(copy_of(other.gradients), copy_of(expected.gradients))
    assert unlike > 0.01 * scale


def test_both_factors_of_an_adapted_head_train_in_pieces() -> None:
    """The first has no gradient until the second has left 0."""
    settings: dict[str, Any] = {
        "lora_keys": ["self_attn.q_proj", "model.embed_tokens"],
        "learning_rate": 1e-2,
    }
    pieces = {**settings, "lm_head_chunk_size": 1}
    plain, chunked = make_learner(**settings), make_learner(**pieces)
    for step in (1, 2, 3):
        plain.update([make_rows()], config_of(**settings), step)
        chunked.update([make_rows()], config_of(**pieces), step)
        if step == 1:
            start = copy_of(plain.policy.weights)
    found, expected = copy_of(chunked.policy.weights), copy_of(plain.policy.weights)
    name = next(name for name in expected if name.endswith("embed_tokens.lora_a"))
    assert number(mx.abs(expected[name] - start[name]).max()) > 1e-3
    assert largest_difference(found, expected) < 1e-4


def test_a_gradient_that_fails_leaves_the_model_ready_to_sample() -> None:
    learner = learner_with()
    with (
        patch.object(SplitForward, "hidden", side_effect=RuntimeError("no memory")),
        pytest.raises(RuntimeError, match="no memory"),
    ):
        learner.gradient([make_rows()], config_of())
    assert not learner.policy.model.training


def test_a_model_of_unknown_sizes_takes_one_row_at_a_time() -> None:
    config = config_of()
    chunks = row_chunks.RowChunks(learner_by_position(config).policy.model, config)
    assert [len(chunk) for chunk in chunks.of(make_rows())] == [1] * len(make_rows())


def test_layers_are_checkpointed_while_a_gradient_is_computed_and_not_in_rollouts() -> None:
    learner = learner_with(gradient_checkpointing=True)
    kinds = [type(layer) for layer in learner.policy.model.layers]
    seen: list[bool] = []
    hidden = SplitForward.hidden

    def noted(self: SplitForward, ids_B_T: mx.array) -> mx.array:
        seen.append(all(type(layer) not in kinds for layer in learner.policy.model.layers))
        return hidden(self, ids_B_T)

    with patch.object(SplitForward, "hidden", noted):
        learner.gradient([make_rows()], config_of())
    assert seen == [True]
    assert [type(layer) for layer in learner.policy.model.layers] == kinds


def test_a_pass_holds_no_more_rows_than_asked_and_only_their_own_padding() -> None:
    rows = make_rows()
    seen: list[tuple[int, ...]] = []
    learner = learner_with(forward_chunk_size=3)
    with passes_of(seen):
        learner.gradient([rows], config_of())
    lengths = [len(row.prompt_ids) + len(row.completion_ids) - 1 for row in rows]
    assert seen == [(3, max(lengths[:3])), (3, max(lengths[3:6])), (2, max(lengths[6:]))]


def test_without_a_wish_long_rows_go_through_one_by_one() -> None:
    learner = learner_with()
    rows = make_rows()
    seen: list[tuple[int, ...]] = []
    with passes_of(seen), patch.object(row_chunks, "CPU_BYTES", 1):
        learner.gradient([rows], config_of())
    assert [shape[0] for shape in seen] == [1] * len(rows)
    seen.clear()
    with passes_of(seen):
        learner.gradient([rows], config_of())
    assert [shape[0] for shape in seen] == [len(rows)]


def test_logits_are_made_for_so_many_rows_at_once() -> None:
    made: list[int] = []
    whole = SplitForward.logits

    def counted(self: SplitForward, hidden_N_H: mx.array) -> mx.array:
        made.append(hidden_N_H.shape[0])
        return whole(self, hidden_N_H)

    rows = make_rows()
    learner = learner_with(lm_head_chunk_size=3)
    with patch.object(SplitForward, "logits", counted):
        learner.gradient([rows], config_of())
    tokens = [len(row.completion_ids) for row in rows]
    pieces = [sum(tokens[:3]), sum(tokens[3:6]), sum(tokens[6:])]
    assert made == pieces * 2  # once for the scores, once more for the gradients


def test_stored_log_probs_are_the_same_in_chunks() -> None:
    reused: dict[str, Any] = {"num_iterations": 2, "kl_coef": 0.1}
    expected = learner_with(**reused).with_logprobs(make_rows(), config_of(**reused))
    bounds = BOUNDS["everything"]
    config = config_of(**reused, **bounds)
    found = learner_with(**reused, **bounds).with_logprobs(make_rows(), config)
    for one, other in zip(found, expected, strict=True):
        assert one.old_logprobs == pytest.approx(other.old_logprobs, abs=1e-5)
        assert one.ref_logprobs == pytest.approx(other.ref_logprobs, abs=1e-5)


def test_a_vocabulary_part_may_be_larger_than_the_vocabulary() -> None:
    config = config_of(vocab_chunk_size=VOCABULARY + 1)
    expected = learner_with().gradient([make_rows()], config_of())
    found = learner_with(vocab_chunk_size=VOCABULARY + 1).gradient([make_rows()], config)
    assert number(found.loss) == number(expected.loss)


def test_memory_settings_have_no_default_that_bounds() -> None:
    config = GRPOConfig()
    assert config.forward_chunk_size is config.lm_head_chunk_size is config.vocab_chunk_size is None
