"""A self-test names the fault, and no other line fails for it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map, tree_map_with_path
from mlx_lm.tuner.lora import LoRALinear

from grpo_trainer import learner, rollout
from grpo_trainer.completion_scores import CompletionScorer
from grpo_trainer.learner import Learner
from grpo_trainer.policy import Policy, load_policy
from grpo_trainer.prompt_reading import read_prompts
from grpo_trainer.rollout import decode_greedily, sample_groups
from grpo_trainer.selftest import bench, checks, command
from selftests import (
    BATCH,
    FINITE,
    FROZEN,
    GRADIENT,
    MEMORY,
    MOVE,
    RATIO,
    RISE,
    ROLLOUT,
    selftest,
)

Patch = pytest.MonkeyPatch


def break_model(monkeypatch: Patch, damage: Callable[[Policy], None]) -> None:
    """Every model that is loaded from now on has that damage."""

    def load(*args: Any) -> Policy:
        policy = load_policy(*args)
        damage(policy)
        return policy

    monkeypatch.setattr(command, "load_policy", load)


class Detached(LoRALinear):  # type: ignore[misc]
    """Its adapters have no part in the gradient."""

    def __call__(self, x: mx.array) -> mx.array:
        product = (x @ mx.stop_gradient(self.lora_a)) @ mx.stop_gradient(self.lora_b)
        result: mx.array = self.linear(x) + self.scale * product
        return result


def detached_layer(monkeypatch: Patch) -> None:
    def damage(policy: Policy) -> None:
        policy.model.layers[0].mlp.down_proj.__class__ = Detached

    break_model(monkeypatch, damage)


def gradient_that_is_no_number(monkeypatch: Patch) -> None:
    class Infinite(LoRALinear):  # type: ignore[misc]
        def __call__(self, x: mx.array) -> mx.array:
            result: mx.array = super().__call__(x)
            return result + mx.sqrt(mx.abs(result - result))

    def damage(policy: Policy) -> None:
        policy.model.layers[0].mlp.down_proj.__class__ = Infinite

    break_model(monkeypatch, damage)


def batch_that_mixes_up_rows(monkeypatch: Patch) -> None:
    def mixed(*args: Any) -> Any:
        logits, cache = read_prompts(*args)
        return logits[::-1], cache

    def broken(model: Any, prompts: Any, options: Any) -> Any:
        with Patch.context() as patched:
            patched.setattr(rollout, "read_prompts", mixed)
            return decode_greedily(model, prompts, options)

    monkeypatch.setattr(checks, "decode_greedily", broken)


def sampler_that_is_off(monkeypatch: Patch) -> None:
    def off(*args: Any, **kwargs: Any) -> Any:
        found = sample_groups(*args, **kwargs)
        return [replace(row, logprobs=[value + 0.1 for value in row.logprobs]) for row in found]

    monkeypatch.setattr(bench, "sample_groups", off)


def loss_of_the_wrong_sign(monkeypatch: Patch) -> None:
    right = learner._loss_of

    def wrong(*args: Any) -> Any:
        loss, rest = right(*args)
        return -loss, rest

    monkeypatch.setattr(learner, "_loss_of", wrong)


def optimizer_that_goes_uphill(monkeypatch: Patch) -> None:
    apply = Learner._apply

    def uphill(self: Learner, gradients: Any, rate: float) -> float:
        return apply(self, tree_map(lambda slope: -slope, gradients), rate)

    monkeypatch.setattr(Learner, "_apply", uphill)


def stored_logprobs_that_are_off(monkeypatch: Patch) -> None:
    store = Learner.with_logprobs

    def off(self: Learner, *args: Any) -> Any:
        rows = store(self, *args)
        return [
            replace(row, old_logprobs=row.old_logprobs and [v + 1e-3 for v in row.old_logprobs])
            for row in rows
        ]

    monkeypatch.setattr(Learner, "with_logprobs", off)


def chunks_that_are_weighed_wrongly(monkeypatch: Patch) -> None:
    compute = CompletionScorer.loss_and_gradients

    def wrong(self: CompletionScorer, batch: Any, *args: Any, **kwargs: Any) -> Any:
        loss, rest, gradients = compute(self, batch, *args, **kwargs)
        factor = 1.01 if len(batch.lengths) == 1 else 1.0
        return loss, rest, tree_map(lambda slope: factor * slope, gradients)

    monkeypatch.setattr(CompletionScorer, "loss_and_gradients", wrong)


def weight_that_sticks(monkeypatch: Patch) -> None:
    adopt = Policy.adopt

    def stick(self: Policy, weights: Any) -> None:
        old = self.weights["model"]["layers"][1]["mlp"]["up_proj"]["lora_a"]
        name = "model.layers.1.mlp.up_proj.lora_a"
        adopt(self, tree_map_with_path(lambda path, new: old if path == name else new, weights))

    monkeypatch.setattr(Policy, "adopt", stick)


def frozen_weight_that_drifts(monkeypatch: Patch) -> None:
    adopt = Policy.adopt

    def drift(self: Policy, weights: Any) -> None:
        adopt(self, weights)
        norm = self.model.layers[1].input_layernorm
        norm.weight = norm.weight * (1 + 2e-7)

    monkeypatch.setattr(Policy, "adopt", drift)


def check_that_crashes(monkeypatch: Patch) -> None:
    def crash(*_: Any) -> None:
        raise KeyError("no such layer\nin this model")

    monkeypatch.setattr(checks, "decode_greedily", crash)


@pytest.mark.parametrize(
    ("damage", "line", "found"),
    [
        (detached_layer, GRADIENT, "2 of 28 tensors have none: model.layers.0.mlp.down_proj.lora_"),
        (batch_that_mixes_up_rows, BATCH, "prompts get other tokens, which are"),
        (sampler_that_is_off, ROLLOUT, "off by 0.1 nats on average (≤ 0.0001), 0.1 at most"),
        (loss_of_the_wrong_sign, RISE, "where the gradient promises +"),
        (optimizer_that_goes_uphill, RISE, "the step goes uphill"),
        (stored_logprobs_that_are_off, RATIO, "by 0.001 (≤ 1e-05) with stored log-probs"),
        (chunks_that_are_weighed_wrongly, MEMORY, "gradient by 0.01 of the largest"),
        (weight_that_sticks, MOVE, "1 of 28 tensors stay: model.layers.1.mlp.up_proj.lora_a"),
        (frozen_weight_that_drifts, FROZEN, "1 of 24 changed: model.layers.1.input_layernorm"),
        (check_that_crashes, BATCH, "KeyError: 'no such layer"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_one_fault_fails_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Patch,
    damage: Callable[[Patch], None],
    line: str,
    found: str,
) -> None:
    damage(monkeypatch)
    report = selftest(capsys)
    assert report.failed == {line}, report.text
    assert found in report.found[line]
    assert report.code == 1
    assert report.text.splitlines()[-1] == "1 of 9 checks failed"


def test_a_gradient_that_is_no_number_is_said_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: Patch
) -> None:
    gradient_that_is_no_number(monkeypatch)
    report = selftest(capsys)
    assert report.found[FINITE] == "loss -0.2188; gradient norm nan"
    assert report.failed >= {FINITE, MOVE}
    assert report.verdicts[BATCH] == report.verdicts[ROLLOUT] == report.verdicts[FROZEN] == "ok"
    assert report.code == 1
