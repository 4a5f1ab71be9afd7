"""Steps that teach nothing, or could ruin the weights, are noticed and named once."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from grpo_protocol import GRPOConfig
from grpo_protocol.messages import Event, Log
from grpo_trainer.errors import TrainingError
from grpo_trainer.learner import UpdateResult
from grpo_trainer.output.reporter import Reporter
from grpo_trainer.rollout_batch import MiniBatch, ScoredGroup
from grpo_trainer.step_guard import MAX_NAN_GRADIENTS, StepGuard
from scored_groups import group, prompts, rollout_batch

CONFIG = GRPOConfig(group_size=2, max_completion_length=10)
DONE = UpdateResult(loss=0.1, gradient_norm=1.0, applied=True)
SKIPPED = UpdateResult(loss=0.0, gradient_norm=0.0, applied=False)
BAD = UpdateResult(loss=math.nan, gradient_norm=math.nan, applied=False, is_finite=False)


class Guard(StepGuard):
    """A guard, and what it said."""

    def __init__(self) -> None:
        reporter = Reporter()
        reporter.open(events=False, console=None)
        self.events: list[Event] = []
        reporter.listen(self.events.append)
        super().__init__(reporter)

    def said(self, level: str = "warn") -> list[str]:
        return [e.message for e in self.events if isinstance(e, Log) and e.level == level]


def mini_batch_of(*groups: tuple[ScoredGroup, Sequence[float | None]]) -> MiniBatch:
    return MiniBatch([replace(one, advantages=list(values)) for one, values in groups], [])


def copies(prompt: int) -> ScoredGroup:
    return replace(group(prompt, [0, 1]), completions=group(prompt, [0, 1]).completions[:1] * 2)


def test_a_step_that_teaches_is_passed_in_silence() -> None:
    guard, mini_batch = Guard(), mini_batch_of((group(0, [0, 1]), [-1, 1]))
    guard.look_at_rollouts(rollout_batch(mini_batch), prompts(1), CONFIG)
    guard.look_at_update(1, mini_batch, DONE, CONFIG)
    assert guard.events == []


# --- M19: one text over and over


def test_M19_copies_of_one_text_in_every_group_are_said_once() -> None:
    guard = Guard()
    for _ in range(3):
        mini_batches = [mini_batch_of((copies(0), [-1, 1])), mini_batch_of((copies(1), [-1, 1]))]
        guard.look_at_rollouts(rollout_batch(*mini_batches), prompts(2), CONFIG)
    (warning,) = guard.said()
    assert "all completions of every group are identical at temperature=0.8" in warning


def test_M19_one_group_of_copies_among_others_is_no_reason() -> None:
    guard, mini_batch = Guard(), mini_batch_of((copies(0), [0, 0]), (group(1, [0, 1]), [-1, 1]))
    guard.look_at_rollouts(rollout_batch(mini_batch), prompts(2), CONFIG)
    assert guard.said() == []


def test_M19_groups_that_were_replaced_are_looked_at_too() -> None:
    guard = Guard()
    other = MiniBatch([copies(0)], [], [group(1, [1, 1])])
    guard.look_at_rollouts(rollout_batch(other), prompts(2), CONFIG)
    assert guard.said() == []
    guard.look_at_rollouts(rollout_batch(MiniBatch([], [], [copies(0)])), prompts(2), CONFIG)
    assert len(guard.said()) == 1


# --- M04: nobody has an opinion


def test_M04_a_completion_without_reward_names_step_prompt_and_functions_once() -> None:
    guard = Guard()
    parts: dict[str, list[float | None]] = {"exact": [1, None], "form": [None, None]}
    silent = group(2, [1, None], parts=parts)
    mini_batch = mini_batch_of((group(0, [0, 1]), [-1, 1]), (silent, [0, 0]))
    guard.look_at_rollouts(rollout_batch(mini_batch), prompts(3), CONFIG)
    guard.look_at_rollouts(
        rollout_batch(mini_batch_of((group(1, [None, None]), [0, 0]))), prompts(3), CONFIG
    )
    assert guard.said() == [
        "step 7: 1 of 4 completions have no reward, because all of exact, form abstained, first "
        "at row 3; they get no advantage"
    ]


# --- nothing to learn


def test_M01_equal_rewards_are_said_once() -> None:
    guard = Guard()
    for step in (1, 2):
        guard.look_at_update(step, mini_batch_of((group(0, [3, 3]), [0, 0])), SKIPPED, CONFIG)
    (warning,) = guard.said()
    assert warning.startswith(
        "no learning signal at step 1: within each group all rewards are equal"
    )


@pytest.mark.parametrize("rewards", [[0, 1], [1, 1]])
def test_M22_completions_that_were_all_cut_off_are_the_reason(rewards: list[float]) -> None:
    guard = Guard()
    for step in (3, 4):
        mini_batch = mini_batch_of((group(0, rewards, "ll"), [None, None]))
        guard.look_at_update(step, mini_batch, SKIPPED, CONFIG)
    assert guard.said() == [
        "step 3: 2 of 2 completions did not end and are left out, so there is nothing to learn "
        "from; raise max_completion_length=10"
    ]


def test_M22_survivors_without_a_peer_are_lost_by_those_that_were_cut_off() -> None:
    guard = Guard()
    guard.look_at_update(3, mini_batch_of((group(0, [0, 1], "sl"), [0, None])), SKIPPED, CONFIG)
    assert "1 of 2 completions did not end" in guard.said()[0]


def test_M22_cut_off_completions_do_not_hide_that_rewards_are_equal() -> None:
    guard = Guard()
    guard.look_at_update(
        3, mini_batch_of((group(0, [1, 1, 1], "ssl"), [0, 0, None])), SKIPPED, CONFIG
    )
    assert guard.said()[0].startswith("no learning signal")


def test_a_step_whose_groups_were_all_replaced_in_vain_has_no_signal() -> None:
    guard = Guard()
    guard.look_at_update(3, MiniBatch([], [], [group(0, [1, 1])]), SKIPPED, CONFIG)
    assert guard.said()[0].startswith("no learning signal")


def test_repetitive_completions_are_told_of_once_with_the_way_out() -> None:
    guard, mini_batch = Guard(), mini_batch_of((group(0, [0, 1], "sr"), [-1, 1]))
    for _ in range(2):
        guard.look_at_rollouts(rollout_batch(mini_batch), prompts(1), CONFIG)
    assert guard.said() == []
    (note,) = guard.said("info")
    assert "1 completions were ended for repeating themselves (16 equal tokens" in note
    assert "max_consecutive_tokens" in note


def test_rows_left_out_as_repetitive_are_not_blamed_on_the_length() -> None:
    guard = Guard()
    guard.look_at_update(3, mini_batch_of((group(0, [0, 1], "rr"), [None, None])), SKIPPED, CONFIG)
    (warning,) = guard.said()
    assert "max_consecutive_tokens" in warning
    assert "max_completion_length" not in warning


def test_a_gradient_that_masks_leave_at_zero_is_no_error() -> None:
    guard, mini_batch = Guard(), mini_batch_of((group(0, [0, 1]), [-1, 1]))
    for step in (1, 2):
        guard.look_at_update(step, mini_batch, SKIPPED, CONFIG)
    (warning,) = guard.said()
    assert warning.startswith("step 1: the gradient is exactly 0")
    assert guard.said("error") == []


# --- M26: gradients that are no numbers


def test_M26_every_bad_gradient_is_an_error_and_the_hundredth_the_last() -> None:
    guard, mini_batch = Guard(), mini_batch_of((group(0, [0, 1]), [-1, 1]))
    for step in range(1, MAX_NAN_GRADIENTS):
        guard.look_at_update(step, mini_batch, BAD, CONFIG)
        guard.look_at_update(step, mini_batch, DONE, CONFIG)
    assert len(guard.said("error")) == MAX_NAN_GRADIENTS - 1 == 99
    with pytest.raises(TrainingError, match="100 steps had gradients that are not finite; lower"):
        guard.look_at_update(MAX_NAN_GRADIENTS, mini_batch, BAD, CONFIG)
