"""What reward functions may return, and what becomes of anything else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from grpo_trainer.rewards.batch import RewardBatch
from grpo_trainer.rewards.loading import load_scorer
from grpo_trainer.rewards.types import RewardError, Scorer
from reward_batches import text_batch

NAN, INF = float("nan"), float("inf")


def scores_of(function: Callable[..., Any], batch: RewardBatch) -> list[float | None]:
    return load_scorer(function).score(batch).total


def failure_of(scorer: Scorer, batch: RewardBatch) -> RewardError:
    with pytest.raises(RewardError) as caught:
        scorer.score(batch)
    assert "\n" not in str(caught.value)
    return caught.value


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
    batch = text_batch(["a", "b"])
    assert scores_of(lambda completions: np.array([0.5, 1], "float32"), batch) == [0.5, 1.0]
    assert scores_of(lambda completions: [np.float32(0.5), np.bool_(True)], batch) == [0.5, 1]
    failure = failure_of(load_scorer(lambda completions: [0, np.float32("nan")]), batch)
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
