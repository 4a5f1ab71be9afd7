"""What tokens are drawn from: the same numbers as a plain reading of the definitions gives."""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from grpo_protocol import GRPOConfig
from grpo_trainer.distribution import Distribution, history_windows, last_tokens
from grpo_trainer.model_source import load_model
from grpo_trainer.rollout import SamplingOptions, sample_groups
from grpo_trainer.trees import number
from tiny_model import Kind, tiny_model

VOCABULARY = 40
OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "temperature": {"temperature": 0.6},
    "top_k": {"temperature": 1.5, "top_k": 5},
    "top_p": {"temperature": 2.0, "top_p": 0.7},
    "min_p": {"temperature": 1.7, "min_p": 0.2},
    "filters": {"temperature": 1.4, "top_k": 12, "top_p": 0.8, "min_p": 0.05},
    "repetition": {"repetition_penalty": 1.4, "repetition_context_size": 9},
    "encouraged": {"repetition_penalty": 0.7, "presence_penalty": -0.5, "frequency_penalty": -0.2},
    "presence": {"presence_penalty": 0.7, "presence_context_size": 5},
    "frequency": {"frequency_penalty": 0.4, "frequency_context_size": 7},
    "penalties": {
        "repetition_penalty": 1.2,
        "repetition_context_size": 12,
        "presence_penalty": 0.3,
        "presence_context_size": 3,
        "frequency_penalty": 0.25,
        "frequency_context_size": 6,
    },
}
OPTIONS["all"] = {**OPTIONS["penalties"], **OPTIONS["filters"]}
each_option = pytest.mark.parametrize("name", OPTIONS)


def distribution(name: str) -> Distribution:
    return Distribution(**OPTIONS[name])


def plain_logits(
    raw: npt.NDArray[np.float64], history: list[int], d: Distribution
) -> npt.NDArray[np.float64]:
    """One position, one token at a time, in float64; -inf where a token cannot be drawn."""
    scores = [float(score) for score in raw]
    seen = [token for token in history if token >= 0]
    for token in set(seen[-d.repetition_context_size :]):
        factor = 1 / d.repetition_penalty if scores[token] > 0 else d.repetition_penalty
        scores[token] *= factor
    for token in set(seen[-d.presence_context_size :]):
        scores[token] -= d.presence_penalty
    for token in seen[-d.frequency_context_size :]:
        scores[token] -= d.frequency_penalty
    scores = [score / d.temperature for score in scores]
    kept = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if d.top_k:
        kept = kept[: d.top_k]
    if d.top_p < 1:
        masses = np.exp([scores[token] for token in kept])
        shares = np.cumsum(masses / masses.sum())
        kept = kept[: next(n for n, share in enumerate(shares, 1) if share >= d.top_p)]
    best = math.exp(scores[kept[0]])
    kept = [token for token in kept if math.exp(scores[token]) >= d.min_p * best]
    return np.array([s if token in kept else -np.inf for token, s in enumerate(scores)])


def softmax(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    masses = np.exp(scores - scores.max())
    return np.asarray(masses / masses.sum())


def example(seed: int, rows: int = 6, size: int = 16) -> tuple[Any, list[list[int]]]:
    """Logits [rows, V] of both signs, and histories of few tokens, some still short."""
    generator = np.random.default_rng(seed)
    raw = generator.normal(0, 2, (rows, VOCABULARY)).astype(np.float32)
    lengths = [size, size, 7, 2, 0, size][:rows]
    return raw, [last_tokens(generator.integers(0, 8, n).tolist(), size) for n in lengths]


@each_option
def test_the_softmax_is_that_of_the_plain_definition(name: str) -> None:
    for seed in range(5):
        raw, histories = example(seed)
        found = distribution(name).logits(mx.array(raw), mx.array(histories))
        assert found.dtype == mx.float32
        probabilities = np.array(mx.softmax(found, axis=-1))
        for row, history in enumerate(histories):
            expected = softmax(plain_logits(raw[row], history, distribution(name)))
            np.testing.assert_allclose(probabilities[row], expected, atol=2e-6)
            assert ((probabilities[row] == 0) == (expected == 0)).all()


@each_option
def test_leading_shapes_make_no_difference(name: str) -> None:
    raw, histories = example(3)
    flat = distribution(name).logits(mx.array(raw), mx.array(histories))
    nested = distribution(name).logits(
        mx.array(raw).reshape(2, 3, -1), mx.array(histories).reshape(2, 3, -1)
    )
    assert mx.array_equal(nested.reshape(flat.shape), flat).item()


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_the_default_is_the_raw_logits_over_the_temperature(dtype: Any) -> None:
    raw = mx.array(example(1)[0]).astype(dtype)
    for temperature in (0.6, 0.8, 1.0, 1.5):
        found = Distribution(temperature).logits(raw)
        assert found.dtype == mx.float32
        assert mx.array_equal(found, raw.astype(mx.float32) / temperature).item()


def kept(found: mx.array) -> list[int]:
    return [place for place, p in enumerate(np.array(mx.softmax(found, axis=-1))) if p > 0]


def test_equal_logits_are_kept_in_the_order_of_their_ids() -> None:
    tied = mx.array([1.0, 3.0, 3.0, 0.0, 3.0, 5.0])
    assert kept(Distribution(top_k=3).logits(tied)) == [1, 2, 5]
    assert kept(Distribution(top_k=1).logits(mx.zeros(6))) == [0]
    assert kept(Distribution(top_p=0.45).logits(mx.zeros(10))) == [0, 1, 2, 3, 4]


def test_at_least_the_best_token_is_kept() -> None:
    scores = mx.array([0.0, 1.0, 0.5])
    assert kept(Distribution(top_p=1e-6).logits(scores)) == [1]
    assert kept(Distribution(min_p=0.999).logits(scores)) == [1]
    assert kept(Distribution(top_k=50).logits(scores)) == [0, 1, 2]
    assert kept(Distribution(top_k=50, top_p=0.6).logits(scores)) == [1, 2]


def test_the_temperature_comes_before_the_filters() -> None:
    scores = mx.array([2.0, 1.0, 0.0])
    assert kept(Distribution(1.0, top_p=0.66).logits(scores)) == [0]
    assert kept(Distribution(10.0, top_p=0.66).logits(scores)) == [0, 1]
    assert kept(Distribution(1.0, min_p=0.5).logits(scores)) == [0]
    assert kept(Distribution(10.0, min_p=0.5).logits(scores)) == [0, 1, 2]


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p", "all"])
def test_a_token_that_was_drawn_is_never_dropped(name: str) -> None:
    raw, histories = example(2)
    free = distribution(name).logits(mx.array(raw), mx.array(histories))
    worst = mx.argmin(distribution(name).penalized(mx.array(raw), mx.array(histories)), axis=-1)
    found = distribution(name).logits(mx.array(raw), mx.array(histories), worst)
    probabilities = mx.softmax(found, axis=-1)
    of_worst = mx.take_along_axis(probabilities, worst[:, None], axis=-1)
    assert mx.all(of_worst > 0).item()
    others = mx.softmax(free, axis=-1) > 0
    assert ((probabilities > 0).sum(axis=-1) - others.sum(axis=-1)).tolist() == [1] * 6
    best = mx.argmax(free, axis=-1)
    same = distribution(name).logits(mx.array(raw), mx.array(histories), best)
    assert mx.array_equal(same, free).item()


def objective(
    d: Distribution, history: mx.array, chosen: mx.array
) -> Callable[[mx.array], mx.array]:
    """Everything that training takes from logits: log-probabilities and the entropy."""

    def value(raw: mx.array) -> mx.array:
        logits = d.logits(raw, history, chosen)
        normalizer = mx.logsumexp(logits, axis=-1)
        picked = mx.take_along_axis(logits, chosen[:, None], axis=-1)[:, 0]
        entropy = normalizer - (mx.softmax(logits, axis=-1) * logits).sum(axis=-1)
        return (picked - normalizer + 0.5 * entropy).sum()

    return value


@each_option
@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0, 1e4])
def test_values_and_gradients_are_numbers(name: str, scale: float) -> None:
    for seed in range(4):
        raw, histories = example(seed)
        chosen = mx.array(np.random.default_rng(seed).integers(0, VOCABULARY, 6))
        of = objective(distribution(name), mx.array(histories), chosen)
        value, gradient = mx.value_and_grad(of)(mx.array(raw) * scale)
        assert mx.isfinite(value).item()
        assert mx.isfinite(gradient).all().item()


@each_option
def test_gradients_are_those_of_the_kept_and_penalized_logits(name: str) -> None:
    """Against central differences of the plain definition: the filters' choice is constant."""
    d, step = distribution(name), 1e-5
    raw, histories = example(4)
    best = mx.argmax(d.penalized(mx.array(raw), mx.array(histories)), axis=-1)
    tokens = np.array(best).tolist()

    def of(logits: mx.array) -> mx.array:
        found = d.logits(logits, mx.array(histories))
        picked = mx.take_along_axis(found, best[:, None], axis=-1)[:, 0]
        return (picked - mx.logsumexp(found, axis=-1)).sum()

    gradient = np.array(mx.grad(of)(mx.array(raw)))
    for row, history in enumerate(histories):
        for token in range(VOCABULARY):
            moves = step * np.eye(VOCABULARY)[token]
            up, down = (
                math.log(softmax(plain_logits(raw[row] + move, history, d))[tokens[row]])
                for move in (moves, -moves)
            )
            assert gradient[row, token] == pytest.approx((up - down) / (2 * step), abs=1e-4)


def test_a_row_that_is_no_number_is_not_hidden_by_the_filters() -> None:
    found = distribution("filters").logits(mx.array([[math.nan] * 20, [0.0] * 20]))
    assert mx.isnan(found[0]).all().item()
    assert not mx.isnan(found[1]).any().item()


def test_penalties_need_a_history() -> None:
    with pytest.raises(ValueError, match="penalties need the tokens before each position"):
        distribution("presence").logits(mx.zeros((1, 8)))


@pytest.mark.parametrize("size", [1, 3, 10])
def test_the_window_of_a_position_ends_with_its_own_token(size: int) -> None:
    ids = [[5, 6, 7, 8, 9], [1, 1, 2, 3, 5]]
    windows = history_windows(mx.array(ids), size)
    expected = [[last_tokens(row[: t + 1], size) for t in range(5)] for row in ids]
    assert windows.tolist() == expected
    assert last_tokens([7, 8], 3) == [-1, 7, 8]
    assert last_tokens([5, 7, 8], 2) == [7, 8]


class Listener:
    """Passes calls on to a model and keeps its last logits of each call."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.logits: list[mx.array] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, ids: mx.array, cache: Any) -> mx.array:
        logits: mx.array = self.model(ids, cache=cache)
        self.logits.append(logits[:, -1])
        return logits


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_M09_training_sees_the_logits_that_the_rollout_saw(kind: Kind) -> None:
    """Every option on: whole distributions, not only the tokens that were drawn."""
    d, prompt = distribution("all"), [5, 9, 5, 77, 9, 9, 200]
    model = Listener(load_model(str(tiny_model(kind)), lambda message: None).model)
    (found,) = sample_groups(model, [prompt], 1, SamplingOptions(12, d), step=1)
    inputs = mx.array([prompt + found.token_ids[:-1]])
    targets = mx.array([prompt[1:] + found.token_ids])
    windows = history_windows(inputs, d.history_size)
    trained_T_V = d.logits(model.model(inputs), windows, targets)[0, len(prompt) - 1 :]
    for step, raw in enumerate(model.logits[-12:]):
        before = prompt + found.token_ids[:step]
        drawn = d.logits(raw, mx.array([last_tokens(before, d.history_size)]))
        difference = mx.softmax(drawn[0]) - mx.softmax(trained_T_V[step])
        assert number(mx.abs(difference).max()) < 1e-4


def test_it_is_made_of_the_settings_of_the_same_names() -> None:
    assert Distribution.of(GRPOConfig()) == Distribution(GRPOConfig().temperature)
    assert Distribution.of(GRPOConfig(**OPTIONS["all"])) == distribution("all")


def test_it_knows_which_of_its_parts_are_on() -> None:
    sizes = {name: distribution(name).history_size for name in OPTIONS}
    assert sizes == {
        **dict.fromkeys(OPTIONS, 0),
        "repetition": 9,
        "encouraged": 256,
        "presence": 5,
        "frequency": 7,
        "penalties": 12,
        "all": 12,
    }
    truncating = {name for name in OPTIONS if distribution(name).truncates}
    assert truncating == {"top_k", "top_p", "min_p", "filters", "all"}
    bare = distribution("all").without_filters()
    assert not bare.truncates
    assert (
        bare.penalized(mx.zeros((1, 8)), mx.array([[3]])).tolist()
        == distribution("penalties").penalized(mx.zeros((1, 8)), mx.array([[3]])).tolist()
    )
    assert bare.temperature == distribution("filters").temperature


def test_training_leaves_filters_out_once_rollouts_are_used_again() -> None:
    once = GRPOConfig(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1)
    assert Distribution.for_training(once) == Distribution.of(once)
    for reuse in ({"num_iterations": 2}, {"steps_per_generation": 2}):
        again = Distribution.for_training(replace(once, **reuse))
        assert again == Distribution(temperature=0.7)
