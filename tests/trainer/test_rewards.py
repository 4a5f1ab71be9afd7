"""How reward functions are called, and how scores become one number."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from grpo_protocol.config_input import ConfigError
from grpo_trainer.dataset import as_examples
from grpo_trainer.rewards.batch import RewardBatch, completion_texts
from grpo_trainer.rewards.loading import load_scorer
from grpo_trainer.rewards.types import RewardScores, combine
from reward_batches import chat_batch, text_batch

NAN, INF = float("nan"), float("inf")


def scores_of(function: Callable[..., Any], batch: RewardBatch) -> list[float | None]:
    return load_scorer(function).score(batch).total


class Lengths:
    """A reward that is an object, with a method and an async one beside it."""

    def __call__(self, completions: list[str], **kwargs: Any) -> list[int]:
        return [len(text) for text in completions]

    def method(self, completions: list[str]) -> list[int]:
        return [len(text) for text in completions]

    async def wait(self, completions: list[str]) -> list[int]:
        await asyncio.sleep(0)
        return [len(text) for text in completions]


class AsyncLengths:
    async def __call__(self, completions: list[str]) -> list[int]:
        return [len(text) for text in completions]


def by_position(completions: list[str], answer: list[str], /) -> list[float]:
    return [
        float(len(text) + len(gold) - 1) for text, gold in zip(completions, answer, strict=True)
    ]


def by_keyword(*, completions: list[str]) -> list[int]:
    return [len(text) for text in completions]


def with_prompts(prompts: list[str], completions: list[str]) -> list[int]:
    assert prompts == ["prompt 0", "prompt 1"]
    return [len(text) for text in completions]


def with_answer(completions: list[str], answer: list[str]) -> list[int]:
    assert answer == ["x", "y"]
    return [len(text) for text in completions]


def scaled(scale: int, completions: list[str]) -> list[int]:
    return [scale * len(text) for text in completions]


@pytest.mark.parametrize(
    "function",
    [
        with_prompts,
        with_answer,
        by_position,
        by_keyword,
        Lengths(),
        Lengths().method,
        Lengths().wait,
        AsyncLengths(),
        functools.partial(scaled, 1),
        functools.partial(scaled, scale=1),
        functools.partial(Lengths().wait),
        lambda completions: [len(text) for text in completions],
        lambda **kwargs: [len(text) for text in kwargs["completions"]],
    ],
)
def test_e18_only_declared_keywords_are_passed(function: Callable[..., Any]) -> None:
    batch = text_batch(["a", "bbb"], answer=["x", "y"], step_count=[1, 2])
    scorer = load_scorer(function)
    scorer.check(as_examples([{"prompt": "a", "answer": "x", "step_count": 1}]))
    assert scorer.score(batch).total == [1.0, 3.0]


def test_every_keyword_reaches_a_function_that_takes_all() -> None:
    seen: dict[str, Any] = {}

    def reward(**kwargs: Any) -> list[float]:
        seen.update(kwargs)
        return [0.0, 0.0]

    scores_of(reward, text_batch(["a", "b"], step=5, answer=["x", None], other=[[1], {"k": 2}]))
    assert seen.pop("trainer_state").global_step == 4
    assert seen == {
        "prompts": ["prompt 0", "prompt 1"],
        "completions": ["a", "b"],
        "completion_ids": [[0, 1], [1, 2]],
        "finish_reasons": ["stop", "stop"],
        "answer": ["x", None],
        "other": [[1], {"k": 2}],
    }


def test_completions_have_the_form_of_their_prompts() -> None:
    seen: list[Any] = []

    def reward(prompts: list[Any], completions: list[Any]) -> list[float]:
        seen.extend(zip(prompts, completions, strict=True))
        return [float(len(text)) for text in completion_texts(completions)]

    assert scores_of(reward, text_batch(["ab"])) == [2.0]
    assert scores_of(reward, chat_batch(["abc"])) == [3.0]
    assert seen == [
        ("prompt 0", "ab"),
        (
            [{"role": "user", "content": "prompt 0"}],
            [{"role": "assistant", "content": "abc"}],
        ),
    ]


def test_e18_a_parameter_that_nothing_fills_is_reported_before_the_run() -> None:
    def reward(completions: list[str], solution: list[str], weight: float = 1.0) -> list[float]:
        raise AssertionError("is not called")

    with pytest.raises(ConfigError) as caught:
        load_scorer(reward).check(as_examples([{"prompt": "a", "answer": "1"}]))
    message = str(caught.value)
    assert "`reward(completions: list[str], solution" in message
    assert "needs `solution`" in message
    assert "the columns answer and" in message


def test_one_function_cannot_change_what_the_next_one_sees() -> None:
    def vandal(prompts: list[Any], completions: list[Any], answer: list[str]) -> list[float]:
        prompts[0][0]["content"] = "spoilt"
        completions.clear()
        answer.clear()
        return [0.0]

    def witness(prompts: list[Any], completions: list[Any], answer: list[str]) -> list[float]:
        assert prompts == [[{"role": "user", "content": "prompt 0"}]]
        return [float(completion_texts(completions) == ["a"] and answer == ["x"])]

    assert load_scorer([vandal, witness]).score(chat_batch(["a"], answer=["x"])).total == [1.0]


def test_each_function_is_called_once_a_step() -> None:
    calls: list[str] = []

    def first(completions: list[str]) -> list[float]:
        calls.append("first")
        return [0.0] * len(completions)

    async def second(completions: list[str]) -> list[float]:
        calls.append("second")
        return [0.0] * len(completions)

    scorer = load_scorer([second, first])
    scorer.score(text_batch(["a"] * 6))
    assert sorted(calls) == ["first", "second"]
    assert scorer.names == ["second", "first"]


def test_m04_a_row_without_any_score_has_no_total() -> None:
    a: list[float | None] = [1.0, None, None, 0.0]
    b: list[float | None] = [None, None, 0.5, None]
    assert combine({"a": a, "b": b}, [1.0, 1.0]) == RewardScores(
        names=["a", "b"], per_function={"a": a, "b": b}, total=[1.0, None, 0.5, 0.0]
    )


def test_totals_are_weighted_sums() -> None:
    scorer = load_scorer([Lengths().method, lambda completions: [10, None]], weights=[2.0, 0.5])
    assert scorer.score(text_batch(["a", "bb"])).total == [7.0, 4.0]


def test_m28_a_batch_whose_rows_do_not_line_up_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="column answer"):
        text_batch(["a", "b"], answer=["x"])
