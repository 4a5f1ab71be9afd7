"""Groups for a window: sampled, scored, and with dynamic sampling replaced where they are flat."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from grpo_protocol import GRPOConfig
from grpo_trainer import group_sampling
from grpo_trainer.dataset import as_examples
from grpo_trainer.group_sampling import GroupSampler, SampledGroups
from grpo_trainer.model_source import LoadedModel, load_model
from grpo_trainer.output.reporter import Reporter
from grpo_trainer.plan import PlannedWindow
from grpo_trainer.prompts import EncodedPrompt, encode_prompts
from grpo_trainer.rewards.batch import RewardBatch
from grpo_trainer.rewards.types import RewardScores
from grpo_trainer.rollout import Completion, Interrupted, sample_groups
from grpo_trainer.rollout_batch import ScoredGroup
from tiny_model import tiny_model

Function = Callable[[RewardBatch], list[float | None]]
NUM_PROMPTS = 12


class Scorer:
    """Scores with the functions that it is given."""

    def __init__(self, weights: Sequence[float] = (), **functions: Function) -> None:
        self.names = list(functions)
        self._functions = functions
        self.weights = list(weights) or [1.0] * len(functions)
        self.batches: list[RewardBatch] = []

    def score(self, batch: RewardBatch) -> RewardScores:
        self.batches.append(batch)
        found = {name: function(batch) for name, function in self._functions.items()}
        total: list[float | None] = [
            sum(w * (value or 0.0) for w, value in zip(self.weights, row, strict=True))
            for row in zip(*found.values(), strict=True)
        ]
        return RewardScores(total=total, per_function=found, names=self.names)

    def check(self, examples: Sequence[Any]) -> None: ...

    def close(self) -> None: ...


def spread_where(condition: Callable[[int], bool]) -> Function:
    """Gives rows of unequal worth to the prompts for which `condition` holds."""

    def score(batch: RewardBatch) -> list[float | None]:
        prompts = map(int, batch.columns["number"])
        return [float(condition(p) and row % 2) for row, p in enumerate(prompts)]

    return score


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(str(tiny_model()), lambda message: None)


@pytest.fixture(scope="module")
def prompts(loaded: LoadedModel) -> list[EncodedPrompt]:
    rows = [{"prompt": f"{n} = ", "number": n} for n in range(NUM_PROMPTS)]
    return encode_prompts(as_examples(rows), loaded.tokenizer)


class Sampling:
    """A `GroupSampler` over the tiny model, and what it asked of the model."""

    def __init__(self, loaded: LoadedModel, prompts: list[EncodedPrompt], scorer: Scorer) -> None:
        self.calls: list[tuple[int, range]] = []
        self.stopping = False
        self._sampler = GroupSampler(
            loaded.model, loaded.tokenizer, scorer, prompts, Reporter(), lambda: self.stopping
        )

    def __call__(self, wanted: list[int], *, step: int = 1, **settings: Any) -> SampledGroups:
        config = GRPOConfig(**{"group_size": 2, "max_completion_length": 4, **settings})
        return self._sampler.sample(PlannedWindow(step, [wanted]), config)

    @property
    def times(self) -> tuple[float, float]:
        return self._sampler.generation_time, self._sampler.reward_time

    def forget(self) -> None:
        self._sampler.forget_times()


@pytest.fixture
def sampling(loaded: LoadedModel, prompts: list[EncodedPrompt]) -> Callable[..., Sampling]:
    return lambda weights=(), **functions: Sampling(loaded, prompts, Scorer(weights, **functions))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """The rows of the keys that each round of sampling drew from."""
    ranges: list[range] = []

    def listen(model: Any, prompts: Any, size: int, *args: Any, **options: Any) -> Any:
        first = options["first_row"]
        ranges.append(range(first, first + len(prompts) * size))
        return sample_groups(model, prompts, size, *args, **options)

    monkeypatch.setattr(group_sampling, "sample_groups", listen)
    return ranges


def rows(groups: Sequence[ScoredGroup]) -> list[int]:
    return [group.prompt for group in groups]


def ids(groups: Sequence[ScoredGroup]) -> list[list[int]]:
    return [completion.token_ids for group in groups for completion in group.completions]


DYNAMIC = {"dynamic_sampling": True}


def test_each_planned_prompt_gets_a_group_with_what_the_rewards_said(
    loaded: LoadedModel, prompts: list[EncodedPrompt]
) -> None:
    scorer = Scorer(number=lambda batch: [float(n) for n in batch.columns["number"]])
    found = Sampling(loaded, prompts, scorer)([7, 2, 5])
    assert rows(found.kept) == [7, 2, 5]
    assert (found.discarded, found.rounds) == ([], 1)
    assert [group.rewards for group in found.kept] == [[7, 7], [2, 2], [5, 5]]
    assert [group.reward_parts for group in found.kept] == [{"number": [n, n]} for n in (7, 2, 5)]
    (batch,) = scorer.batches
    assert batch.completion_ids == ids(found.kept)
    assert [text for group in found.kept for text in group.texts] == batch.completions


def test_flat_groups_give_way_to_other_prompts(sampling: Any) -> None:
    found = sampling(odd=spread_where(lambda n: n % 2 == 1))(
        [0, 1, 2, 3], **DYNAMIC, dynamic_sampling_attempts=20
    )
    assert rows(found.kept)[:2] == [1, 3], "those that teach keep their order"
    assert len(found.kept) == 4
    assert all(row % 2 for row in rows(found.kept))
    assert all(row % 2 == 0 for row in rows(found.discarded))
    sampled = [*rows(found.kept), *rows(found.discarded)]
    assert len(set(sampled)) == len(sampled), "no prompt comes twice while others are left"


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_a_window_that_cannot_be_filled_costs_so_many_rounds(
    sampling: Any, asked: list[range], attempts: int
) -> None:
    found = sampling(five=spread_where(lambda n: n == 5))(
        [5, 1, 2], **DYNAMIC, dynamic_sampling_attempts=attempts
    )
    assert rows(found.kept) == [5]
    assert len(asked) == found.rounds == attempts
    assert [len(one) for one in asked] == [6] + [4] * (attempts - 1), "only what is missing"
    assert len(found.discarded) == 2 * attempts


def test_all_flat_to_the_end_leaves_nothing(sampling: Any) -> None:
    found = sampling(never=spread_where(lambda n: False))([3, 4], **DYNAMIC)
    assert found.kept == []
    assert len(found.discarded) == 6


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, [1, 2]),
        ({"dynamic_sampling_metric": "big"}, [1, 2]),
        ({"dynamic_sampling_metric": "small"}, [0, 3]),
        ({"dynamic_sampling_metric": "reward"}, [0, 1, 2, 3]),
    ],
)
def test_what_must_spread_can_be_chosen(
    sampling: Any, settings: dict[str, str], kept: list[int]
) -> None:
    """By default the function that weighs most: a shaped sum spreads in hopeless groups too."""
    take = sampling(
        [0.1, 1.0],
        small=spread_where(lambda n: n in (0, 3)),
        big=spread_where(lambda n: n in (1, 2)),
    )
    found = take(
        [0, 1, 2, 3],
        **DYNAMIC,
        dynamic_sampling_attempts=1,
        reward_weights=[0.1, 1.0],
        **settings,
    )
    assert rows(found.kept) == kept


def test_a_refill_depends_on_seed_and_step_alone(sampling: Any) -> None:
    def take(step: int, seed: int = 1, before: Sequence[int] = ()) -> SampledGroups:
        sampler: Sampling = sampling(high=spread_where(lambda n: n > 7))
        for other in before:
            sampler([0, 1], step=other, seed=seed, **DYNAMIC)
        return sampler([0, 1, 2], step=step, seed=seed, dynamic_sampling_attempts=9, **DYNAMIC)

    found, again = take(5), take(5, before=[1, 2, 3])
    assert rows(found.kept) == rows(again.kept)
    assert rows(found.discarded) == rows(again.discarded)
    assert ids(found.kept) == ids(again.kept)
    orders = [[*rows(f.kept), *rows(f.discarded)] for f in (found, take(6), take(5, seed=2))]
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]


def test_no_two_completions_of_a_step_draw_from_the_same_keys(
    sampling: Any, asked: list[range]
) -> None:
    sampling(high=spread_where(lambda n: n > 8))([0, 9, 2], **DYNAMIC, dynamic_sampling_attempts=5)
    drawn = [row for one in asked for row in one]
    assert drawn == list(range(len(drawn)))
    assert len(asked) > 2


def test_a_prompt_that_is_sampled_again_in_a_step_gives_other_completions(
    loaded: LoadedModel, prompts: list[EncodedPrompt]
) -> None:
    take = Sampling(loaded, prompts[:1], Scorer(never=spread_where(lambda n: False)))
    found = take([0], temperature=1.5, **DYNAMIC, dynamic_sampling_attempts=4)
    assert rows(found.discarded) == [0] * 4
    assert len({tuple(one) for one in ids(found.discarded)}) == 8


def test_STOP_is_heard_while_groups_are_replaced(sampling: Any) -> None:
    sampler: Sampling

    def flat_then_stop(batch: RewardBatch) -> list[float | None]:
        sampler.stopping = True
        return [0.0] * len(batch.completions)

    sampler = sampling(flat=flat_then_stop)
    with pytest.raises(Interrupted):
        sampler([0, 1], **DYNAMIC)


def test_times_add_up_over_the_rounds_until_they_are_forgotten(
    sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that goes on by a second with every look at it: each part lasts as one."""

    class Clock:
        def lap(self) -> float:
            return 1.0

    monkeypatch.setattr(group_sampling, "Stopwatch", Clock)
    sampler = sampling(never=spread_where(lambda n: False))
    sampler([0, 1], **DYNAMIC, dynamic_sampling_attempts=3)
    assert sampler.times == (3.0, 3.0)
    sampler.forget()
    sampler([0, 1])
    assert sampler.times == (1.0, 1.0)


def test_groups_are_cut_from_the_completions_in_order(
    sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def numbered(model: Any, prompts: Any, size: int, *_: Any, **__: Any) -> list[Completion]:
        return [Completion([32 + n], "length") for n in range(len(prompts) * size)]

    monkeypatch.setattr(group_sampling, "sample_groups", numbered)
    found = sampling(none=lambda batch: [None] * 6)([4, 2], group_size=3)
    assert [[c.token_ids for c in group.completions] for group in found.kept] == [
        [[32], [33], [34]],
        [[35], [36], [37]],
    ]
    assert [group.texts for group in found.kept] == [["A", "B", "C"], ["D", "E", "F"]]
