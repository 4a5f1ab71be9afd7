"""How reward functions are called, what they may return, and how scores become one number."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from grpo_protocol.config_input import ConfigError
from grpo_trainer.dataset import as_examples
from grpo_trainer.rewards.loading import (
    RewardBatch,
    RewardError,
    RewardScores,
    Scorer,
    combine,
    completion_texts,
    load_scorer,
)
from reward_batches import chat_batch, text_batch

NAN, INF = float("nan"), float("inf")


def scores_of(function: Callable[..., Any], batch: RewardBatch) -> list[float | None]:
    return load_scorer(function).score(batch).total


def failure_of(scorer: Scorer, batch: RewardBatch) -> RewardError:
    with pytest.raises(RewardError) as caught:
        scorer.score(batch)
    assert "\n" not in str(caught.value)
    return caught.value


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


class Array:
    """Stands for an array or tensor of another library."""

    shape = (2,)

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def tolist(self) -> list[Any]:
        return self.values


class Scalar:
    """Stands for a zero-dimensional array, which is no `numbers.Real`."""

    shape = ()

    def item(self) -> float:
        return 0.5


@pytest.mark.parametrize(
    ("returned", "scores"),
    [
        ([1, 0.5], [1.0, 0.5]),
        ((True, False), [1.0, 0.0]),
        ([None, 2], [None, 2.0]),
        (Array([0.25, None]), [0.25, None]),
        ([Scalar(), -1], [0.5, -1.0]),
    ],
)
def test_numbers_bools_and_none_are_scores(returned: Any, scores: list[float | None]) -> None:
    assert scores_of(lambda completions: returned, text_batch(["a", "b"])) == scores


def test_numpy_values_are_scores() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is no dependency of ours")
    batch = text_batch(["a", "b"])
    assert scores_of(lambda completions: numpy.array([0.5, 1], "float32"), batch) == [0.5, 1.0]
    assert scores_of(lambda completions: [numpy.float32(0.5), numpy.bool_(True)], batch) == [0.5, 1]
    failure = failure_of(load_scorer(lambda completions: [0, numpy.float32("nan")]), batch)
    assert failure.row == 1


@pytest.mark.parametrize(
    ("returned", "row", "words"),
    [
        ([1.0, NAN], 1, "returned nan (float)"),
        ([INF, 1.0], 0, "returned inf (float)"),
        ([0, -INF], 1, "returned -inf (float)"),
        ([0, 1e39], 1, "returned 1e+39"),
        ([0, 10**400], 1, "returned 1000"),
        ([0, "1.0"], 1, "returned '1.0' (str)"),
        ([[0], [1]], 0, "returned [0] (list)"),
        ([0, 1j], 1, "returned 1j (complex)"),
        ([1.0], None, "returned 1 scores for 2 completions"),
        ([1.0] * 3, None, "returned 3 scores for 2 completions"),
        ([], None, "returned 0 scores for 2 completions"),
        (1.0, None, "returned 1.0 (float), wanted a list of 2 numbers"),
        (None, None, "returned None, wanted a list"),
        ("10", None, "returned '10' (str)"),
        ({0: 1.0, 1: 2.0}, None, "(dict)"),
        (Array([0, NAN]), 1, "returned nan"),
    ],
)
def test_m05_what_is_no_score_is_an_error_that_names_its_place(
    returned: Any, row: int | None, words: str
) -> None:
    def faulty(completions: list[str]) -> Any:
        return returned

    failure = failure_of(load_scorer(faulty), text_batch(["a", "b"], step=3))
    assert (failure.function, failure.step, failure.row) == ("faulty", 3, row)
    assert words in str(failure)
    assert "`faulty`" in str(failure)
    assert "step 3" in str(failure)


@pytest.mark.parametrize("error", [ValueError("bad\nrow"), SystemExit(0), KeyError("answer")])
@pytest.mark.parametrize("is_async", [False, True])
def test_r29_what_a_function_raises_is_an_error_and_no_score(
    error: BaseException, is_async: bool
) -> None:
    def faulty(completions: list[str]) -> list[float]:
        raise error

    async def faulty_async(completions: list[str]) -> list[float]:
        raise error

    function = faulty_async if is_async else faulty
    failure = failure_of(load_scorer(function), text_batch(["a"], step=7))
    assert failure.function == function.__name__
    assert failure.step == 7
    assert type(error).__name__ in str(failure)
    assert "Traceback" in failure.detail


def test_ctrl_c_inside_of_a_function_is_not_taken_for_its_failure() -> None:
    def interrupted(completions: list[str]) -> list[float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_scorer(interrupted).score(text_batch(["a"]))


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
