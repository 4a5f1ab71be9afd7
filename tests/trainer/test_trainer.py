"""The loop as a library: what a step is made of, what stops it, and what it leaves behind."""

import math
import os
import signal
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from grpo_protocol import ConfigError, GRPOConfig
from grpo_protocol.messages import Checkpoint, EpochEnd, EpochStart, Eval, Generation, Step
from grpo_trainer import trainer as trainer_module
from grpo_trainer.checkpoint import load_checkpoint, read_state
from grpo_trainer.errors import TrainingError
from grpo_trainer.learner import TrainingRow
from grpo_trainer.run_saving import RunSaver
from grpo_trainer.tensor_file import read_tensors
from grpo_trainer.trainer import GRPOTrainer
from learners import are_identical, copy_of
from library_runs import ROWS, Library, letters
from tiny_model import tiny_model

# --- a step


def test_M16_training_gets_the_very_ids_that_were_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random ids do not survive decoding and encoding: their text is full of broken characters."""
    library = Library(tmp_path)
    trained: list[TrainingRow] = []
    update = library.trainer.learner.update

    def listen(micro_batches: Any, *args: Any) -> Any:
        trained.extend(row for batch in micro_batches for row in batch)
        return update(micro_batches, *args)

    monkeypatch.setattr(library.trainer.learner, "update", listen)
    library.train()
    told = library.all(Generation)
    assert [row.completion_ids for row in trained] == [event.token_ids for event in told]
    assert [row.advantage for row in trained] == [event.advantage for event in told]
    tokenizer = library.trainer.policy.source.tokenizer
    again = [tokenizer.encode(event.completion, add_special_tokens=False) for event in told]
    assert again != [event.token_ids for event in told]


@pytest.mark.parametrize("accumulation", [1, 3])
def test_one_step_takes_batch_size_times_accumulation_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulation: int
) -> None:
    library = Library(tmp_path, gradient_accumulation_steps=accumulation, max_steps=1)
    sizes: list[list[int]] = []
    update = library.trainer.learner.update

    def listen(micro_batches: Any, *args: Any) -> Any:
        sizes.append([len(batch) for batch in micro_batches])
        return update(micro_batches, *args)

    monkeypatch.setattr(library.trainer.learner, "update", listen)
    library.train()
    assert sizes == [[8] * accumulation]
    assert len(library.all(Generation)) == 8 * accumulation


def test_M28_prompt_completion_column_and_record_belong_together(tmp_path: Path) -> None:
    seen: list[tuple[str, str, str, int]] = []

    def reward(prompts: Any, completions: Any, answer: Any, **_: Any) -> list[float]:
        seen.extend(zip(prompts, completions, answer, range(len(answer)), strict=True))
        return [float(int(a)) + n / 100 for n, a in enumerate(answer)]

    library = Library(tmp_path, reward, max_steps=6)
    library.train()
    assert len(seen) == 48
    for prompt, _, answer, _ in seen:
        assert prompt == f"{int(answer) // 2} + {int(answer) // 2} ="
    told = library.all(Generation)
    for (prompt, completion, answer, place), event in zip(seen, told, strict=True):
        assert (event.prompt, event.completion) == (prompt, completion)
        assert event.expected_answer == answer
        assert event.reward == pytest.approx(int(answer) + place / 100)
        assert (event.prompt_index, event.group_index) == divmod(place, 4)
    with sqlite3.connect(library.folder / "outputs.db") as db:
        query = """SELECT step, batch_index, group_index, prompt, reward FROM generations
                   JOIN training_steps ON step_id = training_steps.id
                   ORDER BY step, batch_index, group_index"""
        recorded = db.execute(query).fetchall()
    assert [row[3:] for row in recorded] == [(e.prompt, e.reward) for e in told]
    orders = {tuple(answer for *_, answer, _ in seen[start : start + 24]) for start in (0, 24)}
    assert len(orders) == 2, "a new order for each epoch"


def test_M11_the_default_loss_raises_the_reward(tmp_path: Path) -> None:
    """Reward for one letter's share: after 40 steps it is far more frequent."""

    def share_of_a(completions: list[str], **_: Any) -> list[float]:
        return [text.count("a") / max(len(text), 1) for text in completions]

    library = Library(
        tmp_path,
        share_of_a,
        max_steps=40,
        group_size=16,
        learning_rate=3e-2,
        log_jsonl=False,
        sample_display="best_worst",
    )
    library.train()
    rewards = [step.mean_reward for step in library.all(Step)]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.3


# --- nothing to learn, and nothing that can be learned


def test_M01_equal_rewards_change_nothing_and_are_said_once(tmp_path: Path) -> None:
    library = Library(
        tmp_path, lambda completions, **_: [-7.5] * len(completions), weight_decay=0.1, max_steps=3
    )
    before = copy_of(library.trainer.policy.weights)
    assert library.train().status == "completed"
    assert are_identical(copy_of(library.trainer.policy.weights), before)
    for step in library.all(Step):
        assert (step.loss, step.gradient_norm, step.gradients_applied) == (0.0, 0.0, False)
        assert step.metrics["frac_reward_zero_std"] == 1.0
        assert (step.mean_reward, step.std_reward) == (-7.5, 0.0)
    warnings = [text for text in library.logs("warn") if "no learning signal" in text]
    assert len(warnings) == 1
    state = read_state(library.folder / "final")
    assert not state.has_optimizer_state


def test_M04_abstaining_is_not_a_reward_of_zero(tmp_path: Path) -> None:
    def sometimes(completions: list[str], **_: Any) -> list[float | None]:
        return [None if n % 4 == 0 else float(n) for n in range(len(completions))]

    library = Library(tmp_path, sometimes, max_steps=1)
    library.train()
    told = library.all(Generation)
    assert [event.reward for event in told] == [None, 1, 2, 3, None, 5, 6, 7]
    assert [event.advantage for event in told if event.reward is None] == [0.0, 0.0]
    (step,) = library.all(Step)
    assert step.mean_reward == 4.0
    with sqlite3.connect(library.folder / "outputs.db") as db:
        rewards = [row[0] for row in db.execute("SELECT reward FROM generations ORDER BY id")]
    assert rewards == [None, 1, 2, 3, None, 5, 6, 7]


def break_gradients(
    library: Library, steps: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Makes the loss of these steps NaN."""
    update = library.trainer.learner.update

    def broken(micro_batches: Any, config: Any, step: int) -> Any:
        if step in steps:
            micro_batches = [
                [TrainingRow(r.prompt_ids, r.completion_ids, math.nan) for r in batch]
                for batch in micro_batches
            ]
        return update(micro_batches, config, step)

    monkeypatch.setattr(library.trainer.learner, "update", broken)


def test_M26_one_bad_gradient_costs_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path, max_steps=4)
    break_gradients(library, [2], monkeypatch)
    assert library.train().status == "completed"
    assert [step.gradients_applied for step in library.all(Step)] == [True, False, True, True]
    assert math.isnan(library.all(Step)[1].loss)
    assert len([text for text in library.logs("error") if "not finite" in text]) == 1
    assert library.trainer.learner.is_finite()
    with sqlite3.connect(library.folder / "outputs.db") as db:
        losses = [row[0] for row in db.execute("SELECT loss FROM training_steps ORDER BY step")]
    assert losses[1] is None
    assert None not in (losses[0], losses[2])


def test_M26_bad_gradients_for_ever_end_the_run_and_spoil_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "MAX_NAN_GRADIENTS", 3)
    library = Library(tmp_path, max_steps=50, save_interval=1, max_checkpoints=2)
    break_gradients(library, range(4, 50), monkeypatch)
    with pytest.raises(TrainingError, match="3 steps had gradients that are not finite; lower"):
        library.train()
    assert len(library.all(Step)) == 5
    for folder in library.folder.glob("*/adapters.safetensors"):
        tensors = read_tensors(folder)
        assert all(bool(mx.isfinite(w).all()) for w in tensors.values())
    with sqlite3.connect(library.folder / "outputs.db") as db:
        assert db.execute("SELECT status FROM training_runs").fetchone() == ("crashed",)


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_R32_a_failure_while_training_keeps_the_samples_and_saves_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    library = Library(tmp_path, fine_tune_type=kind, learning_rate=1e-3)
    learner = library.trainer.learner
    accumulate = learner._accumulate
    weights: list[dict[str, mx.array]] = []

    def fail_at_3(*args: Any) -> Any:
        result = accumulate(*args)
        if learner.updates == 2:
            weights.append(copy_of(learner.policy.weights))
            raise MemoryError("no room")
        return result

    monkeypatch.setattr(learner, "_accumulate", fail_at_3)
    with pytest.raises(MemoryError):
        library.train()
    with sqlite3.connect(library.folder / "outputs.db") as db:
        steps = db.execute("SELECT step, state FROM training_steps ORDER BY step").fetchall()
        assert steps == [(1, "done"), (2, "done"), (3, "scored")]
        assert db.execute("SELECT count(*) FROM generations").fetchone() == (24,)
        assert db.execute("SELECT status FROM training_runs").fetchone() == ("crashed",)
    (saved,) = library.folder.glob("emergency-*")
    assert saved.name == "emergency-2"
    again = Library(tmp_path / "again", fine_tune_type=kind)
    assert load_checkpoint(saved, again.trainer.learner).step == 2
    assert are_identical(copy_of(again.trainer.policy.weights), weights[0])
    again.trainer.close()


# --- what is told


def test_epochs_begin_and_end_with_the_means_of_their_steps(tmp_path: Path) -> None:
    library = Library(tmp_path, max_steps=None, num_epochs=2, batch_size=4)
    library.train()
    starts, ends, steps = (library.all(kind) for kind in (EpochStart, EpochEnd, Step))
    assert [(e.epoch, e.total_epochs, e.num_batches) for e in starts] == [(1, 2, 2), (2, 2, 2)]
    assert [step.epoch for step in steps] == [1, 1, 2, 2]
    assert [step.step_in_epoch for step in steps] == [1, 2, 1, 2]
    for end, first in zip(ends, (0, 2), strict=True):
        mean = sum(step.mean_reward for step in steps[first : first + 2]) / 2
        assert end.avg_reward == pytest.approx(mean)
        assert end.epoch_time_secs > 0
    kinds = [
        type(event) for event in library.events if isinstance(event, EpochStart | EpochEnd | Step)
    ]
    assert kinds == [EpochStart, Step, Step, EpochEnd] * 2


def test_held_out_prompts_are_decoded_at_the_start_between_and_at_the_end(tmp_path: Path) -> None:
    library = Library(tmp_path, max_steps=5, eval_interval=2, learning_rate=1e-2)
    result = library.train(held_out=ROWS[:3])
    assert [e.step for e in library.all(Eval)] == [0, 2, 4, 5]
    assert result.evaluations == library.all(Eval)
    assert all(event.num_prompts == 3 for event in result.evaluations)
    with sqlite3.connect(library.folder / "outputs.db") as db:
        rows = db.execute("SELECT step, num_prompts FROM evaluations ORDER BY id").fetchall()
    assert rows == [(0, 3), (2, 3), (4, 3), (5, 3)]


def test_evaluating_does_not_change_the_training(tmp_path: Path) -> None:
    plain, with_eval = Library(tmp_path / "a"), Library(tmp_path / "b", eval_interval=1)
    plain.train()
    with_eval.train(held_out=ROWS)
    assert [step.loss for step in plain.all(Step)] == [step.loss for step in with_eval.all(Step)]
    first, second = (lib.folder / "final" / "adapters.safetensors" for lib in (plain, with_eval))
    assert first.read_bytes() == second.read_bytes()


def test_the_same_command_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    runs = [Library(tmp_path / str(n), seed=seed) for n, seed in enumerate((1, 1, 2))]
    for run in runs:
        run.train()
    ids = [[event.token_ids for event in run.all(Generation)] for run in runs]
    assert ids[0] == ids[1] != ids[2]
    files = [(run.folder / "final" / "adapters.safetensors").read_bytes() for run in runs]
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize("mode", ["all", "best_worst", "random"])
def test_the_samples_shown_are_those_of_the_mode_and_all_are_recorded(
    tmp_path: Path, mode: str
) -> None:
    library = Library(tmp_path, sample_display=mode, max_steps=2)
    library.train()
    told = [[e for e in library.all(Generation) if e.step == step] for step in (1, 2)]
    with sqlite3.connect(library.folder / "outputs.db") as db:
        query = """SELECT reward FROM generations JOIN training_steps
                   ON step_id = training_steps.id WHERE step = ? ORDER BY generations.id"""
        recorded = [[row[0] for row in db.execute(query, (step,))] for step in (1, 2)]
    assert [len(rows) for rows in recorded] == [8, 8]
    for shown, rewards in zip(told, recorded, strict=True):
        assert [rewards[event.index] for event in shown] == [event.reward for event in shown]
        match mode:
            case "all":
                assert [event.index for event in shown] == list(range(8))
            case "best_worst":
                best, worst = shown
                assert best.index == rewards.index(max(rewards))
                assert worst.index == rewards.index(min(rewards))
            case _:
                assert len({event.index for event in shown}) == 2


# --- checkpoints of a run


def test_checkpoints_come_at_the_interval_and_only_the_newest_stay(tmp_path: Path) -> None:
    library = Library(tmp_path, max_steps=7, save_interval=2, max_checkpoints=2)
    library.train()
    told = [(e.step, e.kind, Path(e.path).name) for e in library.all(Checkpoint)]
    assert told == [
        (2, "periodic", "checkpoint-2"),
        (4, "periodic", "checkpoint-4"),
        (6, "periodic", "checkpoint-6"),
        (7, "final", "final"),
    ]
    folders = {path.name for path in library.folder.iterdir() if path.is_dir()}
    assert folders == {"checkpoint-4", "checkpoint-6", "final"}


def test_an_interval_of_zero_is_off(tmp_path: Path) -> None:
    library = Library(tmp_path, save_interval=0)
    library.train()
    assert [e.kind for e in library.all(Checkpoint)] == ["final"]


def test_a_checkpoint_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path, save_interval=1)
    save = RunSaver.save

    def fail_at_2(self: Any, kind: Any, name: str | None = None) -> Path:
        if self._describe().step == 2:
            raise OSError("disk full")
        return save(self, kind, name)

    monkeypatch.setattr(RunSaver, "save", fail_at_2)
    assert library.train().status == "completed"
    assert any("step 2 could not be saved: disk full" in text for text in library.logs("error"))


def test_a_final_checkpoint_that_cannot_be_written_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library(tmp_path)

    def fail(self: Any, kind: Any, name: str | None = None) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(RunSaver, "save", fail)
    with pytest.raises(TrainingError, match="checkpoint cannot be saved: disk full"):
        library.train()


# --- the guest in a program


def test_a_library_gives_back_what_it_borrowed(tmp_path: Path, capfd: Any) -> None:
    handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    targets = [os.fstat(fd) for fd in (0, 1, 2)]
    library = Library(tmp_path)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    library.train()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert [os.fstat(fd).st_ino for fd in (0, 1, 2)] == [target.st_ino for target in targets]
    assert capfd.readouterr() == ("", "")


def test_constructor_and_create_judge_alike(tmp_path: Path) -> None:
    config = GRPOConfig(model=str(tiny_model()), group_size=1)
    with pytest.raises(ConfigError, match="group_size=1"):
        GRPOTrainer.create(config, reward_functions=[letters])
    library = Library(tmp_path)
    with pytest.raises(ConfigError, match="group_size=1"):
        GRPOTrainer(library.trainer.policy, config, library.trainer.scorer)
    library.trainer.close()


def test_data_that_cannot_be_used_leaves_nothing_behind(tmp_path: Path) -> None:
    library = Library(tmp_path)
    with pytest.raises(ConfigError, match="row 2"):
        library.train([{"prompt": "a"}, {"promt": "b"}])
    assert not library.folder.exists()
