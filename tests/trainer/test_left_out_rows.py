"""Completions that were cut off, with and without the settings that leave them out (M22, W52)."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.messages import FinishReason, Generation, Step
from grpo_trainer import group_sampling
from grpo_trainer.rollout import Completion, sample_groups
from grpo_tui.drawing.sample_text import group_line, title_line
from grpo_tui.record.database import DatabaseReader
from grpo_tui.record.database_rows import GenerationQuery
from grpo_tui.sample_query import parse_query
from learners import are_identical, copy_of
from library_runs import Library
from record_queries import NEWEST, keys
from run_feed import Feed

ALL_CUT: dict[str, Any] = {
    "seed": 1,  # with it the model never happens to end a completion of its own accord
    "max_completion_length": 4,
    "mask_truncated_completions": True,
}
Reason = Callable[[int], FinishReason]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Callable[[Reason], None]:
    """Lets a test say why the rows of a rollout ended, whatever the model wrote."""

    def say(reason_of: Reason) -> None:
        def sample(*args: Any, **options: Any) -> list[Completion]:
            found = sample_groups(*args, **options)
            return [replace(c, finish_reason=reason_of(row)) for row, c in enumerate(found)]

        monkeypatch.setattr(group_sampling, "sample_groups", sample)

    return say


def by_place(completions: list[str], **_: Any) -> list[float]:
    """0, 1, 4 and 9 in each group of four."""
    return [float((row % 4) ** 2) for row in range(len(completions))]


def by_hand(rewards: list[float]) -> list[float]:
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (std + 1e-4) for r in rewards]


# --- all of them


def test_M22_when_all_are_cut_off_nothing_moves_and_it_is_said_how_many(tmp_path: Path) -> None:
    library = Library(
        tmp_path,
        by_place,
        **ALL_CUT,
        gradient_accumulation_steps=2,
        kl_coef=0.1,
        entropy_coef=0.01,
        max_steps=2,
    )
    before = copy_of(library.trainer.policy.weights)
    assert library.train().status == "completed"
    assert are_identical(copy_of(library.trainer.policy.weights), before)
    assert [e.finish_reason for e in library.all(Generation)] == ["length"] * 24
    for step in library.all(Step):
        assert (step.loss, step.gradient_norm, step.gradients_applied) == (0.0, 0.0, False)
        assert step.metrics["completions/clipped_ratio"] == 1.0
        assert step.metrics["completions/trained_ratio"] == 0.0
        assert all(value is None or math.isfinite(value) for value in step.metrics.values())
    assert library.logs("warn") == [
        "step 1: 16 of 16 completions did not end and are left out, so there is nothing to learn "
        "from; raise max_completion_length=4"
    ]


def test_M22_tokens_that_are_left_out_were_sampled_all_the_same(tmp_path: Path) -> None:
    library = Library(tmp_path, by_place, **ALL_CUT)
    library.train([{"prompt": "abc"}] * 6)
    prompt_tokens = len(library.trainer.policy.source.tokenizer.encode("abc"))
    steps = library.all(Step)
    assert [step.total_tokens for step in steps] == [8 * 4] * 3
    seen = [step.metrics["num_tokens"] for step in steps]
    assert seen == [n * 8 * (prompt_tokens + 4) for n in (1, 2, 3)]


def test_M22_without_the_setting_they_are_trained_on(tmp_path: Path) -> None:
    library = Library(tmp_path, by_place, **{**ALL_CUT, "mask_truncated_completions": False})
    library.train()
    assert all(step.gradients_applied for step in library.all(Step))
    assert None not in [event.advantage for event in library.all(Generation)]


# --- some of them


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dapo", "gmpo", "luspo"])
def test_M22_the_loss_is_that_of_the_one_that_ended(
    tmp_path: Path, ends: Any, loss_type: str
) -> None:
    """At a ratio of 1 the loss of one row is minus its advantage; luspo multiplies by length."""
    ends(lambda row: "stop" if row == 3 else "length")
    library = Library(
        tmp_path,
        by_place,
        loss_type=loss_type,
        mask_truncated_completions=True,
        max_steps=1,
    )
    library.train()
    (row,) = library.updates[0].rows
    assert row.advantage == pytest.approx(by_hand([0, 1, 4, 9])[3]), "the masked ones are peers"
    (step,) = library.all(Step)
    length = len(row.completion_ids) if loss_type == "luspo" else 1
    assert step.loss == pytest.approx(-row.advantage * length, rel=1e-5)
    assert step.gradients_applied
    assert step.metrics["completions/trained_ratio"] == 1 / 8
    assert library.logs("warn") == []


def test_W52_the_filter_judges_each_prompt_by_its_survivors(tmp_path: Path, ends: Any) -> None:
    """The first prompt loses all four, the second its last: the step goes on with three rows."""
    ends(lambda row: "length" if row < 4 or row == 7 else "stop")
    library = Library(tmp_path, by_place, degenerate_filter=True, max_steps=1)
    library.train()
    told = library.all(Generation)
    expected = by_hand([0, 1, 4])
    assert [event.advantage for event in told[:4]] == [None] * 4
    assert [event.advantage for event in told[4:7]] == pytest.approx(expected)
    assert told[7].advantage is None
    (update,) = library.updates
    assert [row.completion_ids for row in update.rows] == [e.token_ids for e in told[4:7]]
    assert [row.advantage for row in update.rows] == pytest.approx(expected)
    (step,) = library.all(Step)
    assert step.gradients_applied
    assert step.mean_reward == 3.5, "rewards are told of all that was sampled"
    assert step.metrics["advantages/max"] == pytest.approx(expected[2])
    assert step.total_tokens == sum(event.tokens for event in told)
    assert library.logs("warn") == []


def test_W52_a_batch_without_any_survivor_is_one_step_without_update(
    tmp_path: Path, ends: Any
) -> None:
    ends(lambda row: "length")
    library = Library(tmp_path, by_place, degenerate_filter=True)
    library.train()
    assert [step.gradients_applied for step in library.all(Step)] == [False] * 3
    assert len(library.logs("warn")) == 1


# --- who reads of it


async def test_what_was_left_out_has_no_advantage_in_the_record(tmp_path: Path, ends: Any) -> None:
    ends(lambda row: "length" if row < 4 else "stop")
    library = Library(tmp_path, by_place, mask_truncated_completions=True, max_steps=2)
    library.train()
    query = "SELECT advantage IS NULL, count(*) FROM generations GROUP BY 1"
    assert library.query(query) == [(0, 8), (1, 8)]
    async with await DatabaseReader.open(library.folder / "outputs.db") as reader:
        (run,) = await reader.runs()
        found = await reader.generations(await keys(reader, NEWEST, run.id))
        assert sorted(row.batch_index for row in found.values() if row.advantage is None) == (
            [0] * 8
        )
        known = GenerationQuery(filter=parse_query("adv>-99"))
        assert len(await keys(reader, known, run.id)) == 8
        steps = [row async for chunk in reader.step_series(run.id) for row in chunk]
    assert [row.mean_advantage for row in steps] == pytest.approx([0.0, 0.0], abs=1e-9)


async def test_a_step_without_any_advantage_has_no_mean_in_the_record(tmp_path: Path) -> None:
    library = Library(tmp_path, by_place, **ALL_CUT)
    library.train()
    async with await DatabaseReader.open(library.folder / "outputs.db") as reader:
        (run,) = await reader.runs()
        steps = [row async for chunk in reader.step_series(run.id) for row in chunk]
    assert [(row.mean_advantage, row.loss) for row in steps] == [(None, 0.0)] * 3
    told = [record["metrics"]["advantages/mean"] for record in library.records("step")]
    assert told == [None] * 3


def test_the_dashboard_shows_completions_that_were_left_out(tmp_path: Path, ends: Any) -> None:
    ends(lambda row: "length" if row < 4 else "stop")
    library = Library(tmp_path, by_place, mask_truncated_completions=True, max_steps=1)
    library.train()
    state = Feed()(*library.events)
    shown = [sample for sample in state.samples if sample.advantage is None]
    assert len(shown) == 4
    for sample in shown:
        assert "adv" not in title_line(sample).plain
        assert group_line(sample, state.samples.group(sample.group), 4)
