"""Functions of the running program: where they run, refusals, and time limits."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from grpo_protocol.config_input import ConfigError
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


async def wait(completions: list[str]) -> list[int]:
    await asyncio.sleep(0)
    return [len(text) for text in completions]


def one(completions: list[str]) -> list[float]:
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("rewards", "weights", "words"),
    [
        ([], None, "reward: none is given"),
        ([one, one], None, "2 functions are named `one`"),
        ([one], [1.0, 2.0], "reward_weights=[1.0, 2.0]"),
        ([one], [NAN], "finite"),
        ([3], None, "reward=3: is no function"),
        ([dict], None, "is no function"),
        ([one, "rewards.py"], None, "cannot be mixed"),
        ("rewards.txt", None, "reward='rewards.txt': expected FILE.py"),
        ("missing.py", None, "no such file"),
    ],
)
def test_rewards_that_cannot_be_used_are_refused_at_once(
    rewards: Any, weights: list[float] | None, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_scorer(rewards, weights)
    assert words in str(caught.value)


def test_functions_run_in_the_calling_thread() -> None:
    threads: list[int] = []

    def plain(completions: list[str]) -> list[float]:
        threads.append(threading.get_ident())
        return [0.0]

    async def waiting(completions: list[str]) -> list[float]:
        threads.append(threading.get_ident())
        return [0.0]

    load_scorer([plain, waiting]).score(text_batch(["a"]))
    assert threads == [threading.get_ident()] * 2


def test_async_functions_run_together_and_keep_their_loop() -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    started = 0

    async def meet(completions: list[str]) -> list[float]:
        nonlocal started
        started += 1
        loops.append(asyncio.get_running_loop())
        while started % 2:
            await asyncio.sleep(0)
        return [1.0]

    async def other(completions: list[str]) -> list[float]:
        return await meet(completions)

    scorer = load_scorer([meet, other], timeout=30)
    for step in (1, 2):
        assert scorer.score(text_batch(["a"], step=step)).total == [2.0]
    assert len({id(loop) for loop in loops}) == 1
    scorer.close()
    scorer.close()


async def test_async_functions_work_where_a_loop_runs_already() -> None:
    scorer = load_scorer(wait)
    assert scorer.score(text_batch(["abc"])).total == [3.0]
    assert scorer.score(text_batch(["ab"])).total == [2.0]
    scorer.close()


def test_a_late_async_function_is_cancelled() -> None:
    ends: list[str] = []

    async def late(completions: list[str]) -> list[float]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            await asyncio.sleep(0.1)
            raise
        return [0.0]

    notices: list[str] = []
    scorer = load_scorer([one, late], timeout=0.05, on_output=lambda _, line: notices.append(line))
    failure = failure_of(scorer, text_batch(["a"], step=2))
    assert ends == ["cancelled"]
    assert failure.function == "late"
    assert "reward_timeout=0.05" in str(failure)
    assert notices == []


def test_a_late_plain_function_is_reported_while_it_runs_and_its_result_dropped() -> None:
    notices: list[tuple[str, str]] = []
    reported = threading.Event()

    def late(completions: list[str]) -> list[float]:
        assert reported.wait(30)
        return [1.0]

    def on_output(stream: str, line: str) -> None:
        notices.append((stream, line))
        reported.set()

    failure = failure_of(
        load_scorer([late, one], timeout=0.05, on_output=on_output), text_batch(["a"])
    )
    ((stream, line),) = notices
    assert stream == "notice"
    assert "`late` still runs after reward_timeout=0.05" in line
    assert failure.function == "late"


def test_without_a_limit_nothing_is_late() -> None:
    assert load_scorer([one, wait], timeout=0).score(text_batch(["a"])).total == [2.0]
