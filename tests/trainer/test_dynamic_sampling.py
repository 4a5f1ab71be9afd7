"""Runs that replace groups without spread by other prompts."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol import ConfigError
from grpo_protocol.messages import Generation, Step
from grpo_trainer import trainer as trainer_module
from grpo_tui.record.database import DatabaseReader
from learners import are_identical, copy_of
from library_runs import Library
from record_queries import NEWEST, keys

ROWS = [{"prompt": f"{n} + {n} =", "number": n} for n in range(20)]


def odd_ones(completions: list[str], number: list[int], **_: Any) -> list[float]:
    """Only groups of odd numbers spread."""
    return [float(n % 2 and row % 4) for row, n in enumerate(number)]


def never(completions: list[str], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def noise(completions: list[str], **_: Any) -> list[float]:
    """Spreads in every group."""
    return [float(row % 4) for row in range(len(completions))]


def dynamic(folder: Path, *rewards: Any, **settings: Any) -> Library:
    """Four groups a step, unless the test says otherwise."""
    return Library(
        folder,
        *rewards,
        **{"dynamic_sampling": True, "batch_size": 4, "dynamic_sampling_attempts": 8, **settings},
    )


def numbers(told: Iterable[Generation]) -> list[int]:
    """Which prompts they answer."""
    return [int(event.prompt.split()[0]) for event in told]


def told_by_step(library: Library) -> list[list[Generation]]:
    steps = [step.step for step in library.all(Step)]
    return [[e for e in library.all(Generation) if e.step == step] for step in steps]


def test_flat_groups_are_replaced_until_the_step_is_full(tmp_path: Path) -> None:
    library = dynamic(tmp_path, odd_ones)
    library.train(ROWS)
    steps = zip(library.all(Step), told_by_step(library), library.updates, strict=True)
    for step, told, update in steps:
        kept, discarded = told[:16], told[16:]
        assert [row.completion_ids for row in update.rows] == [e.token_ids for e in kept]
        assert all(n % 2 for n in numbers(kept))
        assert not any(n % 2 for n in numbers(discarded))
        assert None not in [event.advantage for event in kept]
        assert {event.advantage for event in discarded} == {None}
        metrics = step.metrics
        assert metrics["dynamic_sampling/kept_groups"] == 4
        assert metrics["dynamic_sampling/discarded_groups"] == len(discarded) / 4 > 0
        assert metrics["dynamic_sampling/kept_reward"] == 1.5
        assert metrics["dynamic_sampling/rounds"] > 1
        assert metrics["frac_reward_zero_std"] == len(discarded) / len(told)
        assert metrics["completions/trained_ratio"] == 16 / len(told)
        assert step.mean_reward == pytest.approx(1.5 * 16 / len(told)), "of all that was sampled"
        assert step.total_tokens == sum(event.tokens for event in told)
    assert library.logs("warn") == []


async def test_replaced_groups_are_recorded_without_advantage(tmp_path: Path) -> None:
    library = dynamic(tmp_path, odd_ones, max_steps=1)
    library.train(ROWS)
    told = library.all(Generation)
    query = "SELECT batch_index, group_index, advantage FROM generations ORDER BY id"
    assert library.query(query) == [(e.prompt_index, e.group_index, e.advantage) for e in told]
    places = [(e.prompt_index, e.group_index) for e in told]
    assert places == [divmod(row, 4) for row in range(len(told))]
    async with await DatabaseReader.open(library.folder / "outputs.db") as reader:
        (run,) = await reader.runs()
        rows = await reader.generations(await keys(reader, NEWEST, run.id))
    unknown = [row for row in rows.values() if row.advantage is None]
    assert len(unknown) == len(told) - 16 > 0
    ((metrics,),) = library.query("SELECT metrics FROM training_steps")
    (record,) = library.records("step")
    (step,) = library.all(Step)
    assert json.loads(metrics) == record["metrics"] == step.metrics


def test_the_same_command_replaces_the_same_groups(tmp_path: Path) -> None:
    runs = [dynamic(tmp_path / name, odd_ones) for name in ("first", "second")]
    for run in runs:
        run.train(ROWS)
    first, second = ([event.token_ids for event in run.all(Generation)] for run in runs)
    assert first == second


def test_replacing_a_group_changes_no_other_completion(tmp_path: Path) -> None:
    ids: list[dict[int, list[int]]] = []
    for name, reward in (("lucky", noise), ("unlucky", odd_ones)):
        library = dynamic(tmp_path / name, reward, shuffle=False, max_steps=1)
        library.train(ROWS)
        told = library.all(Generation)
        ids.append({n: event.token_ids for n, event in zip(numbers(told), told, strict=True)})
    lucky, unlucky = ids
    assert list(lucky) == [0, 1, 2, 3]
    assert {n: unlucky[n] for n in lucky} == lucky


def test_all_flat_to_the_cap_is_a_step_without_update(tmp_path: Path) -> None:
    library = dynamic(tmp_path, never, dynamic_sampling_attempts=3, kl_coef=0.1)
    before = copy_of(library.trainer.policy.weights)
    assert library.train(ROWS).status == "completed"
    assert are_identical(copy_of(library.trainer.policy.weights), before)
    for step, told in zip(library.all(Step), told_by_step(library), strict=True):
        assert (step.loss, step.gradient_norm, step.gradients_applied) == (0.0, 0.0, False)
        assert (step.mean_reward, step.mean_advantage) == (0.0, None)
        assert step.metrics["dynamic_sampling/kept_groups"] == 0
        assert step.metrics["dynamic_sampling/rounds"] == 3
        assert step.metrics["frac_reward_zero_std"] == 1.0
        assert len(told) == 4 * 3 * 4
        assert {event.advantage for event in told} == {None}
    assert len([text for text in library.logs("warn") if "no learning signal" in text]) == 1
    assert library.query("SELECT count(*) FROM generations") == [(3 * 48,)]
    assert library.query("SELECT DISTINCT state FROM training_steps") == [("done",)]


def test_a_half_filled_window_feeds_all_of_its_steps(tmp_path: Path) -> None:
    def only_19(completions: list[str], number: list[int], **_: Any) -> list[float]:
        return [float(n > 16 and row % 4) for row, n in enumerate(number)]

    library = dynamic(
        tmp_path,
        only_19,
        batch_size=1,
        steps_per_generation=3,
        dynamic_sampling_attempts=2,
        shuffle=False,
    )
    library.train([*ROWS[17:19], ROWS[0]])
    assert [len(update.rows) for update in library.updates] == [4, 4, 0]
    assert [step.gradients_applied for step in library.all(Step)] == [True, True, False]
    assert [len(told) for told in told_by_step(library)] == [4 + 4, 4 + 4, 0]


def test_gdpo_without_any_group_left_is_a_step_without_update(tmp_path: Path) -> None:
    library = dynamic(
        tmp_path,
        never,
        dynamic_sampling_attempts=1,
        multi_objective_aggregation="normalize_then_sum",
        max_steps=2,
    )
    assert library.train(ROWS).status == "completed"
    assert [step.gradients_applied for step in library.all(Step)] == [False, False]


def test_a_spread_that_the_degenerate_filter_takes_away_is_none(tmp_path: Path) -> None:
    """Hardly a completion ends, so none is left that could differ from another."""
    library = dynamic(
        tmp_path,
        noise,
        degenerate_filter=True,
        max_completion_length=2,
        dynamic_sampling_attempts=2,
        max_steps=1,
    )
    library.train(ROWS)
    (step,) = library.all(Step)
    assert step.metrics["completions/clipped_ratio"] > 0.9
    assert step.metrics["dynamic_sampling/kept_groups"] == 0
    assert step.metrics["dynamic_sampling/rounds"] == 2


async def test_database_and_events_agree_on_a_step_without_any_group_left(tmp_path: Path) -> None:
    library = dynamic(tmp_path, never, dynamic_sampling_attempts=1, max_steps=1)
    library.train(ROWS)
    (step,) = library.all(Step)
    query = "SELECT mean_reward, std_reward FROM training_steps"
    assert library.query(query) == [(step.mean_reward, step.std_reward)] == [(0.0, 0.0)]


def test_prompts_that_repeat_within_a_step_get_other_completions(tmp_path: Path) -> None:
    library = dynamic(tmp_path, never, temperature=1.5, max_steps=1, batch_size=1)
    library.train(ROWS[:1])
    told = library.all(Generation)
    assert len(told) == 32
    assert len({tuple(event.token_ids) for event in told}) > 30


@pytest.mark.parametrize(("metric", "kept"), [(None, 0), ("never", 0), ("reward", 4), ("noise", 4)])
def test_the_metric_decides(tmp_path: Path, metric: str | None, kept: int) -> None:
    """Without a name it is the function that weighs most."""
    library = dynamic(
        tmp_path,
        noise,
        never,
        reward_weights=[0.1, 1.0],
        dynamic_sampling_metric=metric,
        dynamic_sampling_attempts=1,
        max_steps=1,
    )
    library.train(ROWS)
    (step,) = library.all(Step)
    assert step.metrics.get("dynamic_sampling/kept_groups", 4) == kept
    assert step.gradients_applied == bool(kept)


def test_an_unknown_metric_is_refused_before_the_model_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "load_policy", lambda *_: pytest.fail("loaded"))
    with pytest.raises(ConfigError, match=r"dynamic_sampling_metric='nose'.*noise, or reward"):
        dynamic(tmp_path, noise, dynamic_sampling_metric="nose")
    assert not (tmp_path / "run").exists()
