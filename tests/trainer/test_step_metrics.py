"""The numbers of a step: the same for listeners, in the database and in the log, and right."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol.messages import Generation, Step
from grpo_trainer.trees import number
from learners import copy_of
from library_runs import Library, Update

ALWAYS = {
    "num_tokens",
    "step_time",
    "reward",
    "reward_std",
    "reward_coverage",
    "frac_reward_zero_std",
    "advantages/mean",
    "advantages/min",
    "advantages/max",
    "completions/mean_length",
    "completions/min_length",
    "completions/max_length",
    "completions/mean_terminated_length",
    "completions/min_terminated_length",
    "completions/max_terminated_length",
    "completions/clipped_ratio",
    "completions/repetition_ratio",
    "completions/trained_ratio",
    "rewards/place/mean",
    "rewards/place/std",
    "rewards/place/coverage",
}
UPDATED = {
    "entropy",
    "weight_delta",
    "ratio/mean",
    "ratio/max_deviation",
    "sampling/sampling_logp_difference/mean",
    "sampling/sampling_logp_difference/max",
}
CLIPPED = {
    "clip_ratio/low_mean",
    "clip_ratio/low_min",
    "clip_ratio/high_mean",
    "clip_ratio/high_max",
    "clip_ratio/region_mean",
}
IMPORTANCE = {
    "sampling/importance_sampling_ratio/mean",
    "sampling/importance_sampling_ratio/min",
    "sampling/importance_sampling_ratio/max",
}


def place(completions: list[str], **_: Any) -> list[float | None]:
    """None, 1, 4 and 9 in each group of four."""
    return [float((row % 4) ** 2) or None for row in range(len(completions))]


def metrics_of(library: Library) -> list[dict[str, Any]]:
    """Of each step, once they are found to be the same everywhere, and finite or unknown."""
    told = [step.metrics for step in library.all(Step)]
    query = "SELECT metrics FROM training_steps ORDER BY step"
    assert [json.loads(text) for (text,) in library.query(query)] == told
    assert [record["metrics"] for record in library.records("step")] == told
    for metrics in told:
        assert all(value is None or math.isfinite(value) for value in metrics.values())
    return told


def settings_only(value: Any) -> str:
    """A test's name from its settings; a set of names has no order of its own."""
    return str(value) if isinstance(value, dict) else ""


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({}, CLIPPED),
        ({"loss_type": "dapo"}, CLIPPED),
        ({"loss_type": "gmpo"}, CLIPPED),
        ({"loss_type": "sapo"}, set()),
        ({"loss_type": "cispo"}, {"cispo_clip_ratio"}),
        ({"loss_type": "vespo"}, {"vespo/phi_seq_mean"}),
        ({"kl_coef": 0.1}, CLIPPED | {"kl"}),
        ({"entropy_coef": 0.01}, CLIPPED | {"policy_loss", "entropy_coef"}),
        ({"adaptive_entropy": True}, CLIPPED | {"policy_loss", "entropy_coef"}),
        ({"mismatch_correction": "token_truncate"}, CLIPPED | IMPORTANCE),
        ({"num_iterations": 2}, CLIPPED | {"rollout/age"}),
    ],
    ids=settings_only,
)
def test_every_metric_that_applies_is_told_and_no_other(
    tmp_path: Path, settings: dict[str, Any], more: set[str]
) -> None:
    library = Library(tmp_path, place, max_steps=2, **settings)
    library.train()
    for metrics in metrics_of(library):
        assert set(metrics) == ALWAYS | UPDATED | more
        assert None not in metrics.values()


def test_a_step_without_update_tells_what_it_sampled(tmp_path: Path) -> None:
    library = Library(tmp_path, lambda completions, **_: [None] * len(completions), max_steps=2)
    library.train()
    for metrics in metrics_of(library):
        assert set(metrics) == {name.replace("place", "<lambda>") for name in ALWAYS}
        assert (metrics["reward"], metrics["reward_std"]) == (None, None)
        assert (metrics["reward_coverage"], metrics["frac_reward_zero_std"]) == (0.0, 1.0)
        assert metrics["rewards/<lambda>/mean"] is None


def test_rewards_advantages_and_lengths_are_those_of_the_completions(tmp_path: Path) -> None:
    library = Library(tmp_path, place, max_steps=2)
    library.train()
    mean, std = 14 / 3, math.sqrt(49 / 3)
    advantages = [(r - mean) / (std + 1e-4) for r in (1, 4, 9)]
    batch_std = math.sqrt(2 * sum((r - mean) ** 2 for r in (1, 4, 9)) / 5)
    for step, metrics in enumerate(metrics_of(library), start=1):
        lengths = [e.tokens for e in library.all(Generation) if e.step == step]
        expected = {
            "reward": mean,
            "reward_std": batch_std,
            "reward_coverage": 0.75,
            "rewards/place/mean": mean,
            "rewards/place/std": batch_std,
            "rewards/place/coverage": 0.75,
            "frac_reward_zero_std": 0.0,
            "advantages/mean": 0.0,
            "advantages/min": advantages[0],
            "advantages/max": advantages[2],
            "completions/mean_length": sum(lengths) / 8,
            "completions/min_length": min(lengths),
            "completions/max_length": max(lengths),
        }
        found = {name: metrics[name] for name in expected}
        assert found == pytest.approx(expected, abs=1e-12)
    for event, metrics in zip(library.all(Step), metrics_of(library), strict=True):
        assert (event.mean_reward, event.std_reward) == (metrics["reward"], metrics["reward_std"])
        assert event.mean_advantage == metrics["advantages/mean"]


def test_num_tokens_counts_prompts_and_completions_of_the_run_so_far(tmp_path: Path) -> None:
    library = Library(tmp_path, place)
    library.train()
    counts = [
        sum(len(row.prompt_ids) + len(row.completion_ids) for row in update.rows)
        for update in library.updates
    ]
    seen = [metrics["num_tokens"] for metrics in metrics_of(library)]
    assert seen == [sum(counts[: step + 1]) for step in range(3)]


def differences_of(update: Update) -> list[float]:
    """Old minus sampling log-prob of each token."""
    return [
        old - sampling
        for row in update.rows
        for old, sampling in zip(row.old_logprobs or (), row.sampling_logprobs or (), strict=True)
    ]


def sampling_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.startswith("sampling/")}


def test_the_mismatch_of_sampling_and_training_is_measured_token_by_token(
    tmp_path: Path,
) -> None:
    """Filters are left out of the ratio when rollouts are reused, so the two differ a lot."""
    library = Library(
        tmp_path,
        place,
        num_iterations=2,
        max_steps=2,
        top_k=3,
        mismatch_correction="token_truncate",
        mismatch_max=0.5,
        mismatch_min=0.1,
    )
    library.train()
    for update, metrics in zip(library.updates, metrics_of(library), strict=True):
        differences = differences_of(update)
        sizes = [abs(difference) for difference in differences]
        ratios = [min(max(math.exp(d), 0.1), 0.5) for d in differences]
        assert max(sizes) > 0.5
        assert len(set(ratios)) > 3
        assert sampling_metrics(metrics) == pytest.approx(
            {
                "sampling/sampling_logp_difference/mean": sum(sizes) / len(sizes),
                "sampling/sampling_logp_difference/max": max(sizes),
                "sampling/importance_sampling_ratio/mean": sum(ratios) / len(ratios),
                "sampling/importance_sampling_ratio/min": min(ratios),
                "sampling/importance_sampling_ratio/max": max(ratios),
            },
            rel=1e-5,
        )


def test_sampling_and_training_agree_when_nothing_is_filtered(tmp_path: Path) -> None:
    library = Library(tmp_path, place, repetition_penalty=1.2, temperature=0.7)
    library.train()
    for metrics in metrics_of(library):
        assert metrics["sampling/sampling_logp_difference/max"] < 1e-4


def test_kl_is_that_of_the_tokens_to_the_model_that_the_run_started_from(tmp_path: Path) -> None:
    """With rollouts used once, the sampler's log-probs are the policy's."""
    library = Library(tmp_path, place, kl_coef=0.1, learning_rate=1e-2)
    library.train()
    first, *later = zip(library.updates, metrics_of(library), strict=True)
    assert first[1]["kl"] == pytest.approx(0.0, abs=1e-6)
    for update, metrics in later:
        kl = [
            math.expm1(reference - policy) - (reference - policy)
            for row in update.rows
            for reference, policy in zip(
                row.ref_logprobs or (), row.sampling_logprobs or (), strict=True
            )
        ]
        assert metrics["kl"] == pytest.approx(sum(kl) / len(kl), rel=1e-3)
        assert metrics["kl"] > 1e-2


def test_weight_delta_is_how_far_the_weights_went(tmp_path: Path) -> None:
    """AdamW's first step moves every weight with a gradient by about the learning rate."""
    library = Library(tmp_path, place, max_steps=1, learning_rate=1e-3, weight_decay=0.0)
    before = copy_of(library.trainer.policy.weights)
    library.train()
    after = copy_of(library.trainer.policy.weights)
    moved = sum(number(((after[name] - before[name]) ** 2).sum()) for name in before)
    (metrics,) = metrics_of(library)
    assert metrics["weight_delta"] == pytest.approx(math.sqrt(moved), rel=1e-4)
    assert moved > 0
