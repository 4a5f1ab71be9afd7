"""Which rows and which of their tokens a step learns from: ids as sampled, and nothing else."""

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from grpo_protocol import GRPOConfig
from grpo_protocol.messages import FinishReason
from grpo_trainer.dataset import Example
from grpo_trainer.model_source import load_model
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rollout import Completion
from grpo_trainer.rollout_batch import ScoredGroup
from grpo_trainer.training_data import micro_batches, with_advantages
from grpo_trainer.training_rows import TrainingRow, completion_values, to_tensors
from grpo_trainer.trees import number
from learners import (
    EOS,
    LOSS_TYPES,
    config_of,
    cut,
    largest_difference,
    learner_by_position,
    logprobs_of,
    loss_and_gradient,
    make_learner,
    make_rows,
    off_policy_rows,
)
from tiny_model import tiny_model

PROMPT = EncodedPrompt(Example("2 + 2 =", {}, "test"), [21, 22])


def group_of(
    ids: list[list[int]], reasons: list[FinishReason], rewards: list[float], prompt: int = 0
) -> ScoredGroup:
    completions = [
        Completion(row, reason, [-2.0] * len(row)) for row, reason in zip(ids, reasons, strict=True)
    ]
    return ScoredGroup(prompt, completions, [""] * len(ids), list(rewards), {"r": list(rewards)})


# --- layout


def test_rows_are_padded_on_the_right_and_targets_are_the_next_tokens() -> None:
    rows = [
        TrainingRow([21, 22], [23, 24, 2], 0.5, [-1.0, -2.0, -3.0], [-4.0] * 3, [-5.0] * 3),
        TrainingRow([5], [6], -0.5, [-7.0], [-8.0], [-9.0]),
    ]
    batch = to_tensors(rows)
    assert batch.inputs_B_T.tolist() == [[21, 22, 23, 24], [5, 6, 0, 0]]
    assert batch.targets_B_T.tolist() == [[22, 23, 24, 2], [6, 0, 0, 0]]
    assert batch.mask_B_T.tolist() == [[0, 1, 1, 1], [1, 0, 0, 0]]
    assert batch.advantages_B.tolist() == [0.5, -0.5]
    expected = {
        "sampling": [[0, -1, -2, -3], [-7, 0, 0, 0]],
        "old": [[0, -4, -4, -4], [-8, 0, 0, 0]],
        "ref": [[0, -5, -5, -5], [-9, 0, 0, 0]],
    }
    for name, lines in expected.items():
        assert getattr(batch, f"{name}_logprobs_B_T").tolist() == lines
    assert batch.sampling_logprobs_B_T is not None
    assert completion_values(batch.sampling_logprobs_B_T, rows) == [[-1, -2, -3], [-7]]


def test_log_probs_that_some_row_lacks_are_left_out() -> None:
    known = TrainingRow([1], [2], 1.0, sampling_logprobs=[-1.0])
    unknown = TrainingRow([1], [2], 1.0)
    assert to_tensors([known, unknown]).sampling_logprobs_B_T is None
    assert to_tensors([known]).sampling_logprobs_B_T is not None


# --- which position scores a token, and which tokens count


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_W44_each_token_is_scored_with_the_logits_of_the_position_before_it(
    temperature: float,
) -> None:
    """Against a loop that feeds the model each prefix alone."""
    config = config_of(temperature=temperature, num_iterations=2)
    rows = make_rows()
    found = make_learner().with_logprobs(rows, config)
    model = load_model(str(tiny_model()), lambda message: None).model
    for row in found:
        expected, ids = [], list(row.prompt_ids)
        for token in row.completion_ids:
            logits_V = model(mx.array([ids]))[0, -1] / temperature
            expected.append(number(logits_V[token] - mx.logsumexp(logits_V)))
            ids.append(token)
        assert row.old_logprobs == pytest.approx(expected, abs=1e-4)


def test_W45_padding_and_company_change_no_log_probability() -> None:
    learner, rows = make_learner(), make_rows()
    together = logprobs_of(learner, rows, config_of())
    for row, found in zip(rows, together, strict=True):
        [alone] = logprobs_of(learner, [row], config_of())
        assert found == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("partner", [0, 3], ids=["alone", "beside a longer row"])
def test_M13_exactly_the_completion_and_its_end_get_gradient(partner: int, loss_type: str) -> None:
    """Prompt 21 22, completion 23 24 EOS: the targets of positions 1, 2 and 3."""
    config = config_of(loss_type=loss_type)
    learner = learner_by_position(config)
    rows = [TrainingRow([21, 22], [23, 24, 2], 1.0)]
    if partner:
        rows.append(TrainingRow([21, 22], [9] * (3 + partner), 0.0))
    _, gradient = loss_and_gradient(learner, [rows], config)
    table = gradient["table"]
    moved = mx.any(table != 0, axis=1).tolist()
    assert moved == [False, True, True, True, False, False, False, False]
    assert bool((table[mx.array([1, 2, 3]), mx.array([23, 24, 2])] < 0).all())


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_M13_the_prompt_is_context_and_its_tokens_are_no_targets(loss_type: str) -> None:
    """A model that sees positions alone is indifferent to it; one that reads is not."""
    config = config_of(loss_type=loss_type, fine_tune_type="full")
    deaf = learner_by_position(config, vocabulary=266, positions=16)
    reading = make_learner(fine_tune_type="full")
    rows = off_policy_rows(reading, config)
    others = [replace(row, prompt_ids=[3, *row.prompt_ids[1:]]) for row in rows]
    for learner, is_moved in ((deaf, False), (reading, True)):
        loss, gradient = loss_and_gradient(learner, [rows], config)
        other_loss, other_gradient = loss_and_gradient(learner, [others], config)
        assert (abs(loss - other_loss) > 1e-3) == is_moved
        assert (largest_difference(gradient, other_gradient) > 1e-3) == is_moved


# --- the ids that were sampled


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([*b"<think>", EOS], id="a tag spelled in bytes"),
        pytest.param([171, 123, EOS], id="half a character"),
        pytest.param([EOS], id="nothing but the end"),
        pytest.param([220, 220, 256, 97, EOS], id="a special token inside"),
    ],
)
def test_M16_the_ids_trained_on_are_the_ids_sampled(ids: list[int]) -> None:
    tokenizer: Any = load_model(str(tiny_model()), lambda message: None).tokenizer
    again = tokenizer.encode(tokenizer.decode(ids, skip_special_tokens=True))
    assert again != ids
    config = config_of(group_size=2)
    group = group_of([ids, [97, EOS]], ["stop", "stop"], [1.0, 0.0])
    [rows] = micro_batches(with_advantages([group], [1.0], config), [PROMPT], config)
    assert rows[0].completion_ids == ids
    assert rows[0].prompt_ids == PROMPT.token_ids
    assert rows[0].sampling_logprobs == group.completions[0].logprobs
    learner = learner_by_position(config, vocabulary=266, positions=12)
    _, gradient = loss_and_gradient(learner, [[rows[0]]], config)
    lowered = np.argwhere(np.array(gradient["table"]) < 0).tolist()
    assert lowered == [[1 + place, token] for place, token in enumerate(ids)]


# --- completions that are left out

LIMIT = 4
RIGHT: FinishReason = "stop"
CUT_OFF: FinishReason = "length"


def cut_off_batches(
    config: GRPOConfig, stopped: tuple[int, ...], groups: int
) -> list[list[TrainingRow]]:
    """Eight rows in so many groups, of which those in `stopped` came to an end."""
    rows = [[(7 * row + place) % 32 for place in range(LIMIT)] for row in range(8)]
    ids = [row[: 2 + n % 2] if n in stopped else row for n, row in enumerate(rows)]
    reasons = [RIGHT if n in stopped else CUT_OFF for n in range(8)]
    rewards = [float(n % 3) for n in range(8)]
    size = 8 // groups
    scored = [
        group_of(ids[start : start + size], reasons[start : start + size], rewards[start:][:size])
        for start in range(0, 8, size)
    ]
    return micro_batches(with_advantages(scored, [1.0], config), [PROMPT], config)


def left_out_config(loss_type: str, groups: int, key: str) -> GRPOConfig:
    settings: dict[str, Any] = {key: True, "group_size": 8 // groups}
    return config_of(loss_type=loss_type, max_completion_length=LIMIT, **settings)


KEYS = ["mask_truncated_completions", "degenerate_filter"]


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_M22_the_loss_is_that_of_the_one_completion_that_ended(loss_type: str, groups: int) -> None:
    """With and without accumulation; its length is 3."""
    config = left_out_config(loss_type, groups, "mask_truncated_completions")
    learner = learner_by_position(config)
    batches = cut_off_batches(config, (5,), groups)
    [row] = [row for batch in batches for row in batch]
    # A masked row is still a peer: the advantage is not 0.
    assert abs(row.advantage) > 0.1
    alone = TrainingRow(row.prompt_ids, row.completion_ids, row.advantage)
    expected, expected_gradient = loss_and_gradient(learner, [[alone]], config)
    loss, gradient = loss_and_gradient(learner, batches, config)
    assert loss == pytest.approx(expected, abs=1e-6)
    assert largest_difference(gradient, expected_gradient) < 1e-7
    [logprobs] = logprobs_of(learner, [row], config)
    term = {
        "dr_grpo": 3 / LIMIT,
        "luspo": 3.0,
        "cispo": sum(logprobs) / 3,
        "vespo": sum(logprobs) / 3,
        "sapo": 2.0 if row.advantage > 0 else 2 / 1.05,
    }
    assert loss == pytest.approx(-row.advantage * term.get(loss_type, 1.0), abs=1e-5)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("groups", [1, 2])
def test_M22_dropped_completions_count_nowhere(loss_type: str, groups: int) -> None:
    """The four that ended, each group's compared with one another alone."""
    config = left_out_config(loss_type, groups, "degenerate_filter")
    learner = learner_by_position(config)
    ended = (0, 2, 4, 5)
    batches = cut_off_batches(config, ended, groups)
    rows = [row for batch in batches for row in batch]
    assert len(rows) == len(ended)
    sums = [sum(row.advantage for row in part) for part in cut(rows, [4 // groups] * groups)]
    assert sums == pytest.approx([0.0] * groups, abs=1e-6)
    bare = [TrainingRow(row.prompt_ids, row.completion_ids, row.advantage) for row in rows]
    expected, expected_gradient = loss_and_gradient(learner, [bare], config)
    loss, gradient = loss_and_gradient(learner, batches, config)
    assert loss == pytest.approx(expected, abs=1e-6)
    assert largest_difference(gradient, expected_gradient) < 1e-7


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("key", KEYS)
def test_M22_when_all_are_cut_off_nothing_moves(loss_type: str, groups: int, key: str) -> None:
    config = left_out_config(loss_type, groups, key)
    learner = learner_by_position(config)
    before = mx.array(learner.policy.weights["table"])
    batches = [learner.with_logprobs(b, config) for b in cut_off_batches(config, (), groups)]
    assert not any(batches)
    for given in (batches, [*batches, [], []]):
        result = learner.update(given, config, 1)
        assert (result.applied, result.loss, result.gradient_norm) == (False, 0.0, 0.0)
    assert mx.array_equal(before, learner.policy.weights["table"]).item()
    assert learner.updates == 0


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_M22_a_micro_batch_that_lost_all_its_rows_counts_nowhere(loss_type: str) -> None:
    config = config_of(loss_type=loss_type, max_completion_length=LIMIT)
    rows = [TrainingRow([21, 22], [23, 24, 2], 1.0), TrainingRow([21, 22], [25, 2], -0.5)]
    without, beside = (learner_by_position(config) for _ in range(2))
    expected = without.update([rows], config, 1)
    found = beside.update([[], rows, []], config, 1)
    assert (found.loss, found.gradient_norm) == (expected.loss, expected.gradient_norm)
    assert expected.gradient_norm > 0.01
