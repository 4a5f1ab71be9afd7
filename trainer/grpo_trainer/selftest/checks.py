"""The claims that the self-test checks, in the order in which they can be checked."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import mlx.core as mx
from msgspec.structs import replace as with_settings

from grpo_protocol.config import GRPOConfig
from grpo_trainer.distribution import Distribution
from grpo_trainer.errors import ModelError
from grpo_trainer.learner import Learner, StepGradient
from grpo_trainer.learning_rate import learning_rate_of
from grpo_trainer.rollout import Completion, decode_greedily
from grpo_trainer.selftest.bench import Bench, Step
from grpo_trainer.selftest.finding import Finding, some
from grpo_trainer.selftest.objective_rise import rises_along_the_step
from grpo_trainer.selftest.tensors import checksums
from grpo_trainer.trees import leaves, number
from grpo_trainer.update_metrics import describe_update

_GREEDY_TOKENS = 8
_PLAIN: dict[str, Any] = {
    "gradient_checkpointing": False,
    "forward_chunk_size": None,
    "lm_head_chunk_size": None,
    "vocab_chunk_size": None,
}
_LEAN: dict[str, Any] = {
    "gradient_checkpointing": True,
    "forward_chunk_size": 1,
    "lm_head_chunk_size": 1,
    "vocab_chunk_size": None,
}
_NEGLIGIBLE = 1e-3
"""Share of the largest gradient below which a tensor's is compared with that share instead."""


def batch_decodes_as_single_rows(bench: Bench) -> Finding:
    """Greedy ids of ragged prompts are those of each prompt alone, ties aside."""
    warnings = bench.decoding.warnings
    found = _batch_against_single_rows(bench)
    if found.verdict != "ok" or not warnings:
        return found
    return Finding("warning", "; ".join([found.found, *warnings]))


def _batch_against_single_rows(bench: Bench) -> Finding:
    options = replace(
        bench.sampling, max_tokens=_GREEDY_TOKENS, distribution=Distribution(), chunk_size=None
    )
    if options.mode == "alone":
        return Finding("ok", "one row at a time")
    model, prompts = bench.policy.model, bench.prompts
    together = decode_greedily(model, prompts, options)
    alone = decode_greedily(model, prompts, replace(options, mode="alone"))
    gaps = [
        _gap(model, prompt, *pair)
        for prompt, *pair in zip(prompts, together, alone, strict=True)
        if pair[0].token_ids != pair[1].token_ids
    ]
    tokens = sum(len(row.token_ids) for row in alone)
    found = f"{len(prompts)} ragged prompts, {tokens} greedy tokens"
    if not gaps:
        return Finding("ok", f"{found}: equal")
    worst, bound = _largest(gaps), bench.tolerances.logprob
    return Finding.of(
        worst <= bound,
        f"{found}: {len(gaps)} prompts get other tokens, which are {worst:.2g} nats apart "
        f"(a tie up to {bound:g})",
    )


def _largest(values: Iterable[float]) -> float:
    """Infinite when one is no number, which a comparison would pass over."""
    return max(math.inf if math.isnan(value) else value for value in values)


def _gap(model: Any, prompt: list[int], one: Completion, other: Completion) -> float:
    """Nats between the first tokens that differ, after what comes before them, read in one pass."""
    pairs = list(zip(one.token_ids, other.token_ids, strict=False))
    place = next(n for n, (a, b) in enumerate(pairs) if a != b)
    logits = model(mx.array([prompt + one.token_ids[:place]]))[0, -1].astype(mx.float32)
    return number(mx.abs(logits[pairs[place][0]] - logits[pairs[place][1]]))


def rollouts_are_scored_alike(bench: Bench) -> Finding:
    """Log-probs as drawn are those that training gives the same tokens."""
    # Under the distribution of the sampler, filters included.
    used_once = with_settings(bench.config, num_iterations=1, steps_per_generation=None)
    scored, _ = bench.start_scores
    if Distribution.for_training(used_once) != Distribution.for_training(bench.config):
        scored, _ = bench.learner.scores(bench.rows, used_once)
    gaps = [
        abs(drawn - trained)
        for completion, line in zip(bench.completions, scored, strict=True)
        for drawn, trained in zip(completion.logprobs, line, strict=True)
    ]
    worst, mean, bounds = _largest(gaps), sum(gaps) / len(gaps), bench.tolerances
    return Finding.of(
        worst <= bounds.logprob and mean <= bounds.mean_logprob,
        f"{len(gaps)} tokens: off by {mean:.2g} nats on average (≤ {bounds.mean_logprob:g}), "
        f"{worst:.2g} at most (≤ {bounds.logprob:g})",
    )


def first_ratio_is_one(bench: Bench) -> Finding:
    """New and old policy are the same before the weights have moved."""
    first = _deviation(bench.first_step.gradient)
    stored = _deviation(bench.second_step.gradient)
    bound = bench.tolerances.ratio
    allowed = bound if bench.config.reuses_rollouts else 0.0
    return Finding.of(
        first <= allowed and stored <= bound,
        f"off by {first:.2g} (≤ {allowed:g}) under these settings, by {stored:.2g} (≤ {bound:g}) "
        "with stored log-probs, as num_iterations=2 has them",
    )


def _deviation(gradient: StepGradient) -> float:
    deviation = describe_update(gradient.sums)["ratio/max_deviation"]
    return math.nan if deviation is None else deviation


def numbers_are_finite(bench: Bench) -> Finding:
    """Loss and gradient of both steps are numbers."""
    steps = [bench.first_step]
    if steps[0].update.applied:
        steps.append(bench.second_step)
    losses = ", ".join(f"{step.update.loss:.4g}" for step in steps)
    norms = ", ".join(f"{step.update.gradient_norm:.3g}" for step in steps)
    finite = all(step.update.is_finite for step in steps) and bench.learner.is_finite()
    return Finding.of(finite, f"loss {losses}; gradient norm {norms}")


def objective_rises(bench: Bench) -> Finding:
    """A move along the first step raises the objective by what its gradient promises."""
    least, most = bench.tolerances.least_rise, 2 - bench.tolerances.least_rise
    for rise in rises_along_the_step(bench):
        found = (
            f"{rise.measured:+.2g} where the gradient promises {rise.promised:+.2g}; log-prob of a "
            f"token {rise.good:+.2g} at advantages above 0, {rise.bad:+.2g} below"
        )
        if least <= rise.measured / rise.promised <= most:
            return Finding("ok", found)
    return Finding("FAILED", found)


def memory_settings_change_nothing(bench: Bench) -> Finding:
    """Loss and gradient are those of one plain pass, however they are cut to save memory."""
    plain_settings = _PLAIN if bench.is_padded else {**_PLAIN, "forward_chunk_size": 1}
    own = {name: getattr(bench.config, name) for name in _PLAIN}
    plain = _gradient_under(bench, plain_settings)
    refusal = ""
    try:
        others = [_gradient_under(bench, _LEAN)]
    except ModelError as error:  # for checkpoints that would change the gradient
        refusal = f"; {error}"
        others = [_gradient_under(bench, {**_LEAN, "gradient_checkpointing": False})]
    if own not in (plain_settings, _LEAN):
        others.append(_gradient_under(bench, own))
    loss = _largest(abs(number(plain.loss - other.loss)) for other in others)
    differences = [pair for other in others for pair in _differences(plain, other).items()]
    worst = _largest(value for _, value in differences)
    where = max(differences, key=lambda pair: (math.isnan(pair[1]), pair[1]))[0]
    bound = bench.tolerances.gradient
    return Finding.of(
        loss <= bound and worst <= bound,
        f"by rows, by head and with checkpoints: loss off by {loss:.2g}, gradient by {worst:.2g} "
        f"of the largest in its tensor (≤ {bound:g}, {where}){refusal}",
    )


def _gradient_under(bench: Bench, settings: dict[str, Any]) -> StepGradient:
    """Of some rows of unlike prompts, at the weights between the steps."""
    config: GRPOConfig = with_settings(bench.reusing, **settings)
    return Learner(bench.policy, config).gradient([bench.stored_rows[::4]], config)


def _differences(expected: StepGradient, found: StepGradient) -> dict[str, float]:
    """The largest error of each tensor as a share of its largest element."""
    slopes = dict(leaves(expected.gradients))
    sizes = {name: number(mx.abs(slope).max()) for name, slope in slopes.items()}
    floor = max(_NEGLIGIBLE * max(sizes.values()), 1e-30)
    return {
        name: number(mx.abs(slope - slopes[name]).max()) / max(sizes[name], floor)
        for name, slope in leaves(found.gradients)
    }


def every_tensor_has_a_gradient(bench: Bench) -> Finding:
    """In the first step, or in the second where weights that start at 0 stand before it."""
    first = bench.first_step
    missing = [name for name, found in first.reached.items() if not found]
    late = [name for name in missing if name in first.not_yet]
    missing = [name for name in missing if name not in first.not_yet]
    if late:
        missing += [name for name in late if not bench.second_step.reached[name]]
    total = len(first.reached)
    if missing:
        return Finding("FAILED", f"{len(missing)} of {total} tensors have none: {some(missing)}")
    when = f", {len(late)} of them from the second step on, as lora_b starts at 0" if late else ""
    return Finding("ok", f"all {total} tensors{when}{_idle_note(first)}")


def _idle_note(step: Step) -> str:
    if not step.idle:
        return ""
    blocks = [f"{found.block} {' '.join(map(str, found.idle))}" for found in step.idle]
    idle = sum(len(found.idle) for found in step.idle)
    number = sum(found.number for found in step.idle)
    return f"; no token came to {idle} of {number} experts: {some(blocks)}"


def every_weight_moves(bench: Bench) -> Finding:
    """What has a gradient is changed by the optimizer."""
    steps = [bench.first_step]
    if steps[0].not_yet:
        steps.append(bench.second_step)
    if not all(step.update.applied for step in steps):
        return Finding("FAILED", "no step was taken")
    due = {name for step in steps for name, found in step.reached.items() if found}
    still = sorted({name for step in steps for name in step.hidden})
    if still:
        return Finding("FAILED", f"{len(still)} of {len(due)} tensors stay: {some(still)}")
    rates, own = [step.learning_rate for step in steps], learning_rate_of(bench.config)
    raised = "" if max(rates) == own else f", raised from {own:g} to show in float32"
    return Finding(
        "ok", f"all {len(due)} tensors with a gradient, at learning rate {max(rates):g}{raised}"
    )


def frozen_weights_stay(bench: Bench) -> Finding:
    """Everything that is not trained is the same bit for bit."""
    before = bench.frozen
    if not before:
        return Finding("ok", "there are none: every weight is trained")
    after = checksums(bench.policy.model, bench.policy.weights)
    changed = sorted(name for name in before if after.get(name) != before[name])
    if changed:
        return Finding("FAILED", f"{len(changed)} of {len(before)} changed: {some(changed)}")
    return Finding("ok", f"all {len(before)} tensors, bit for bit")


CHECKS: tuple[tuple[str, Callable[[Bench], Finding]], ...] = (
    ("batch = one row at a time", batch_decodes_as_single_rows),
    ("rollout = training log-probs", rollouts_are_scored_alike),
    ("objective rises", objective_rises),
    ("memory settings change nothing", memory_settings_change_nothing),
    ("loss and gradient are finite", numbers_are_finite),
    ("first ratio is 1", first_ratio_is_one),
    ("gradient in every tensor", every_tensor_has_a_gradient),
    ("every weight moves", every_weight_moves),
    ("frozen weights stay", frozen_weights_stay),
)
"""Name and check of each line."""
