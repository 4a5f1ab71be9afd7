"""Steps that teach nothing, or could ruin the weights, are noticed and named once."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map
from msgspec.structs import replace as replace_setting

from grpo_protocol import GRPOConfig
from grpo_protocol.messages import Event, Log, Step
from grpo_trainer.errors import TrainingError
from grpo_trainer.learner import UpdateResult
from grpo_trainer.output.reporter import Reporter
from grpo_trainer.rollout_batch import MiniBatch, ScoredGroup
from grpo_trainer.step_guard import StepGuard
from grpo_trainer.tensor_file import read_tensors
from learners import are_identical, copy_of
from library_runs import Library
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


# --- M26, W51: losses and gradients that are no numbers


def test_M26_every_bad_gradient_is_an_error_and_the_last_that_is_allowed_ends_the_run() -> None:
    guard, mini_batch = Guard(), mini_batch_of((group(0, [0, 1]), [-1, 1]))
    for step in range(1, 100):
        guard.look_at_update(step, mini_batch, BAD, CONFIG)
    assert len(guard.said("error")) == guard.nan_gradients == 99
    assert guard.said("error")[6] == (
        "step 7: loss or gradient is not finite, so the weights stay as they are "
        "(7 of max_nan_gradients=100)"
    )
    with pytest.raises(TrainingError) as caught:
        guard.look_at_update(100, mini_batch, BAD, CONFIG)
    assert caught.value.exit_code == 1
    assert str(caught.value) == (
        "step 100: 100 steps had a loss or gradient that is not finite; lower learning_rate=1e-05, "
        "set dtype=float32, or look at the rewards; max_nan_gradients=100 is how many end a run"
    )


def test_W51_bad_steps_are_counted_in_all_and_steps_between_them_neither_add_nor_reset() -> None:
    guard, mini_batch = Guard(), mini_batch_of((group(0, [0, 1]), [-1, 1]))
    config = replace_setting(CONFIG, max_nan_gradients=3)
    for step, update in enumerate([BAD, DONE, SKIPPED, DONE, BAD, DONE], start=1):
        guard.look_at_update(step, mini_batch, update, config)
    assert guard.nan_gradients == 2
    with pytest.raises(TrainingError, match=r"^step 7: 3 steps .* max_nan_gradients=3 "):
        guard.look_at_update(7, mini_batch, BAD, config)


def test_W51_the_count_goes_on_where_an_interrupted_run_left_it() -> None:
    guard, mini_batch = Guard(), mini_batch_of((group(0, [0, 1]), [-1, 1]))
    guard.nan_gradients = 2
    with pytest.raises(TrainingError, match="3 steps"):
        guard.look_at_update(9, mini_batch, BAD, replace_setting(CONFIG, max_nan_gradients=3))


def test_W51_a_loss_that_is_not_finite_counts_though_the_gradient_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path, max_steps=2)
    learner = library.trainer.learner
    weights = copy_of(learner.policy.weights)
    state = copy_of(learner.optimizer.state)
    gradient = learner.gradient

    def without_loss(*arguments: Any) -> Any:
        return gradient(*arguments)._replace(loss=mx.array(math.nan))

    monkeypatch.setattr(learner, "gradient", without_loss)
    assert library.train().status == "completed"
    assert library.trainer._guard.nan_gradients == 2
    assert all(math.isfinite(step.gradient_norm or math.nan) for step in library.all(Step))
    assert are_identical(copy_of(learner.policy.weights), weights)
    assert are_identical(copy_of(learner.optimizer.state), state)


def test_W51_a_step_counts_once_however_many_of_its_micro_batches_are_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path, max_steps=3, batch_size=1, gradient_accumulation_steps=3)
    update = library.trainer.learner.update

    def broken(micro_batches: Any, config: Any, step: int, **options: Any) -> Any:
        assert len(micro_batches) == 3
        if step == 2:
            micro_batches = [
                [replace(row, advantage=math.nan) for row in batch] for batch in micro_batches[:2]
            ] + micro_batches[2:]
        return update(micro_batches, config, step, **options)

    monkeypatch.setattr(library.trainer.learner, "update", broken)
    library.train()
    assert library.trainer._guard.nan_gradients == 1
    assert [step.gradients_applied for step in library.all(Step)] == [True, False, True]


# --- weights that are no numbers


@pytest.mark.parametrize("rate", [1e38, 1e39])
@pytest.mark.parametrize("kind", ["lora", "full"])
def test_an_update_that_ruins_the_weights_ends_the_run_and_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, rate: float
) -> None:
    library = Library(tmp_path, fine_tune_type=kind, weight_decay=0.0, max_steps=4, save_interval=1)
    update = library.trainer.learner.update

    def ruin(batches: Any, config: Any, step: int, *, learning_rate: float) -> Any:
        return update(batches, config, step, learning_rate=rate if step == 2 else learning_rate)

    monkeypatch.setattr(library.trainer.learner, "update", ruin)
    with pytest.raises(TrainingError) as caught:
        library.train()
    assert str(caught.value).startswith(
        "step 2: the update made weights that are not finite, though the gradient was; lower "
        "learning_rate="
    )
    assert [step.step for step in library.all(Step)] == [1]
    (saved,) = (path for path in library.folder.iterdir() if path.is_dir())
    assert saved.name == "checkpoint-1"
    for path in saved.glob("*.safetensors"):
        assert all(bool(mx.isfinite(array).all()) for array in read_tensors(path).values())


def test_a_model_that_gives_no_numbers_ends_the_run(tmp_path: Path) -> None:
    library = Library(tmp_path, fine_tune_type="full")
    policy = library.trainer.policy
    policy.adopt(tree_map(lambda weight: weight * math.nan, policy.weights))
    with pytest.raises(TrainingError, match=r"^step 1: no completion has log-probs that are fin"):
        library.train()
    assert library.all(Step) == []


def test_one_completion_with_a_log_prob_that_is_no_number_is_left_to_the_loss() -> None:
    guard, one = Guard(), group(0, [0, 1])
    one.completions[1].logprobs[-1] = math.nan
    guard.look_at_rollouts(rollout_batch(mini_batch_of((one, [-1, 1]))), prompts(1), CONFIG)
    one.completions[0].logprobs[0] = -math.inf
    with pytest.raises(TrainingError, match="step 7: no completion"):
        guard.look_at_rollouts(rollout_batch(mini_batch_of((one, [-1, 1]))), prompts(1), CONFIG)
