"""The reference of the KL term: the policy that the run began with, in the model that trains."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map
from mlx_lm.tuner.utils import linear_to_lora_layers

from grpo_protocol.messages import Step
from grpo_trainer.completion_scores import CompletionScorer
from grpo_trainer.distribution import Distribution
from grpo_trainer.learner import Learner
from grpo_trainer.model_source import load_model
from grpo_trainer.policy import Policy, load_policy
from grpo_trainer.token_scores import score_tokens
from grpo_trainer.training_rows import completion_values, to_tensors
from grpo_trainer.trees import leaves
from learners import are_identical, config_of, copy_of, make_learner, make_rows
from library_runs import Library
from tiny_model import tiny_model

KL: dict[str, Any] = {"kl_coef": 0.1}
BIG: dict[str, Any] = {"learning_rate": 0.05, "gradient_clip_norm": None}
EMBEDDING = "model.embed_tokens"


def adapted_by_hand(dtype: str, use_dora: bool, *keys: str) -> Learner:
    """Adapters on `keys` only, which no setting asks for."""
    source = load_model(str(tiny_model("qwen3", dtype)), lambda message: None)
    source.model.set_dtype(getattr(mx, dtype))
    source.model.freeze()
    parameters = {"rank": 4, "scale": 20.0, "dropout": 0.0, "keys": set(keys)}
    linear_to_lora_layers(source.model, 2, parameters, use_dora=use_dora)
    source.model.eval()
    weights = tree_map(lambda w: w.astype(mx.float32), source.model.trainable_parameters())
    policy = Policy(source.model, source, "lora", parameters, weights)
    policy.adopt(weights)
    return Learner(policy, config_of(**KL, **BIG))


ATTENTION = ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj")
KINDS: dict[str, tuple[str, Callable[[], Learner]]] = {
    "lora": ("float32", lambda: make_learner(**KL, **BIG)),
    "lora and embedding": (
        "float32",
        lambda: adapted_by_hand("float32", False, *ATTENTION, EMBEDDING),
    ),
    "embedding alone": ("float32", lambda: adapted_by_hand("float32", False, EMBEDDING)),
    "dora": ("float32", lambda: adapted_by_hand("float32", True, *ATTENTION)),
    "dora and embedding": (
        "float32",
        lambda: adapted_by_hand("float32", True, *ATTENTION, EMBEDDING),
    ),
    "full": ("float32", lambda: make_learner(fine_tune_type="full", **KL, **BIG)),
    "lora, bfloat16": ("bfloat16", lambda: make_learner(dtype="bfloat16", **KL, **BIG)),
    "lora and embedding, bfloat16": (
        "bfloat16",
        lambda: adapted_by_hand("bfloat16", False, *ATTENTION, EMBEDDING),
    ),
    "full, bfloat16": (
        "bfloat16",
        lambda: make_learner(fine_tune_type="full", dtype="bfloat16", **KL, **BIG),
    ),
}
kinds = pytest.mark.parametrize(("dtype", "make"), KINDS.values(), ids=KINDS)


def logprobs_of_the_file(dtype: str) -> list[list[float]]:
    """Of the rows' completions under a newly loaded model that nothing was added to."""
    model = load_model(str(tiny_model("qwen3", dtype)), lambda message: None).model
    model.set_dtype(getattr(mx, dtype))
    rows, config = make_rows(), config_of()
    logprobs, _ = score_tokens(model, to_tensors(rows), Distribution.of(config))
    return completion_values(logprobs, rows)


def flat(values: list[list[float]]) -> list[float]:
    return [number for line in values for number in line]


def ref_logprobs(learner: Learner) -> list[float]:
    rows = learner.with_logprobs(make_rows(), config_of(**KL))
    return [number for row in rows for number in row.ref_logprobs or [float("nan")]]


def train(learner: Learner, steps: int = 3, **settings: Any) -> None:
    for step in range(1, steps + 1):
        config = config_of(**{**KL, **BIG, **settings})
        rows = learner.with_logprobs(make_rows(), config)
        assert learner.update([rows], config, step).applied


# --- it is the base


@kinds
def test_M25_the_reference_is_the_base_model_however_far_the_policy_has_moved(
    dtype: str, make: Callable[[], Learner]
) -> None:
    learner = make()
    expected = flat(logprobs_of_the_file(dtype))
    assert ref_logprobs(learner) == pytest.approx(expected, abs=1e-5)
    train(learner)
    assert ref_logprobs(learner) == pytest.approx(expected, abs=1e-5)
    moved = flat(learner.scores(make_rows(), config_of())[0])
    assert max(abs(a - b) for a, b in zip(moved, expected, strict=True)) > 0.5


@pytest.mark.parametrize("fine_tune_type", ["lora", "full"])
def test_M25_a_bfloat16_file_in_float32_is_its_own_reference(fine_tune_type: str) -> None:
    """As on a CPU, where `dtype=auto` widens the file."""
    config = config_of(tiny_model("qwen3", "bfloat16"), fine_tune_type=fine_tune_type, **KL, **BIG)
    learner = Learner(load_policy(config, lambda message: None), config)
    train(learner)
    model = load_model(str(tiny_model("qwen3", "bfloat16")), lambda message: None).model
    model.set_dtype(mx.float32)
    logprobs, _ = score_tokens(model, to_tensors(make_rows()), Distribution.of(config))
    expected = flat(completion_values(logprobs, make_rows()))
    assert ref_logprobs(learner) == pytest.approx(expected, abs=1e-5)


# --- it leaves the policy alone


@kinds
def test_M25_the_policy_is_back_after_the_pass(dtype: str, make: Callable[[], Learner]) -> None:
    learner = make()
    train(learner)
    before = copy_of(learner.policy.model.parameters())
    ref_logprobs(learner)
    assert are_identical(copy_of(learner.policy.model.parameters()), before)
    assert not learner.policy.model.training


@kinds
def test_M25_the_policy_is_back_even_when_the_pass_raises(
    dtype: str, make: Callable[[], Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make()
    train(learner)
    before = copy_of(learner.policy.model.parameters())

    def fail(*_: Any, **__: Any) -> Any:
        assert not are_identical(copy_of(learner.policy.model.parameters()), before)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(CompletionScorer, "scores", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        learner.with_logprobs(make_rows(), config_of(**KL))
    assert are_identical(copy_of(learner.policy.model.parameters()), before)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_there_is_no_second_model(dtype: str) -> None:
    learner = make_learner(dtype=dtype, **KL, **BIG)
    reference, policy = learner.reference, learner.policy
    assert reference is not None
    start = dict(leaves(policy.weights))
    train(learner)
    trained = {name for name, _ in leaves(policy.weights)}
    frozen = {n: a for n, a in leaves(policy.model.parameters()) if n not in trained}
    assert frozen
    assert dict(leaves(reference.weights)).keys() == trained
    assert all(array is start[name] for name, array in leaves(reference.weights))
    with reference.in_place():
        inside = dict(leaves(policy.model.parameters()))
        assert all(inside[name] is array for name, array in frozen.items())
    after = dict(leaves(policy.model.parameters()))
    assert all(after[name] is array for name, array in frozen.items())


def test_without_a_KL_term_nothing_is_kept() -> None:
    learner = make_learner()
    assert learner.reference is None
    assert all(row.ref_logprobs is None for row in learner.with_logprobs(make_rows(), config_of()))


# --- from step to step


@pytest.mark.parametrize(
    "settings",
    [{}, {"fine_tune_type": "full"}, {"num_iterations": 2}, {"gradient_accumulation_steps": 2}],
    ids=str,
)
def test_M25_the_divergence_is_0_in_the_first_step_and_not_later(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    run = Library(tmp_path, learning_rate=1e-2, **KL, **settings)
    run.train()
    first, *later = [step.metrics["kl"] for step in run.all(Step)]
    assert first == 0
    assert all(kl > 1e-4 for kl in later)
