"""The loop as a library: what a step is made of, what is told of it, and what a program keeps."""

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol import ConfigError, GRPOConfig
from grpo_protocol.messages import EpochEnd, EpochStart, Eval, Generation, Step
from grpo_trainer.trainer import GRPOTrainer
from learners import copy_of, largest_difference
from library_runs import ROWS, Library, letters
from tiny_model import tiny_model

# --- a step


def test_M16_W53_training_gets_the_very_ids_that_were_sampled_and_scored(tmp_path: Path) -> None:
    """Random ids do not survive decoding and encoding: their text is full of broken characters."""
    scored: list[list[int]] = []

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        scored.extend(completion_ids)
        return letters(completions)

    library = Library(tmp_path, reward)
    library.train()
    trained = [row for update in library.updates for row in update.rows]
    told = library.all(Generation)
    assert [row.completion_ids for row in trained] == scored
    assert [event.token_ids for event in told] == scored
    assert [row.advantage for row in trained] == [event.advantage for event in told]
    tokenizer = library.trainer.policy.source.tokenizer
    again = [tokenizer.encode(event.completion, add_special_tokens=False) for event in told]
    assert again != scored


@pytest.mark.parametrize("accumulation", [1, 3])
def test_one_step_takes_batch_size_times_accumulation_prompts(
    tmp_path: Path, accumulation: int
) -> None:
    library = Library(tmp_path, gradient_accumulation_steps=accumulation, max_steps=1)
    library.train()
    (update,) = library.updates
    assert [len(batch) for batch in update.micro_batches] == [8] * accumulation
    assert len(library.all(Generation)) == 8 * accumulation


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "cispo", "luspo"])
def test_W47_accumulating_makes_the_same_step(tmp_path: Path, loss_type: str) -> None:
    """Two prompts at once, or one after the other: the same completions, norm and weights."""
    cuts = ({"batch_size": 2}, {"batch_size": 1, "gradient_accumulation_steps": 2})
    runs = [
        Library(tmp_path / str(n), **cut, loss_type=loss_type, learning_rate=1e-4, max_steps=2)
        for n, cut in enumerate(cuts)
    ]
    for run in runs:
        run.train()
    ids = [[event.token_ids for event in run.all(Generation)] for run in runs]
    assert ids[0] == ids[1]
    steps = [run.all(Step) for run in runs]
    for whole, cut_up in zip(*steps, strict=True):
        assert cut_up.loss == pytest.approx(whole.loss, rel=1e-4, abs=1e-6)
        assert cut_up.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-4)
    weights = [copy_of(run.trainer.policy.weights) for run in runs]
    assert largest_difference(*weights) < 2e-6


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
