"""One optimizer step from sampled completions: log-probs, loss, gradients, clipping, update."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import mlx.core as mx
from mlx.utils import tree_map

from grpo_protocol.config import GRPOConfig
from grpo_trainer.completion_scores import CompletionScorer, Scores
from grpo_trainer.distribution import Distribution
from grpo_trainer.entropy_bonus import EntropyBonus
from grpo_trainer.gradient_clipping import clip_gradients, tree_norm
from grpo_trainer.learning_rate import learning_rate_of
from grpo_trainer.objective.entropy_mask import entropy_threshold
from grpo_trainer.objective.row_sums import RowSums
from grpo_trainer.objective.step_loss import MicroBatchLoss, step_loss
from grpo_trainer.objective.step_objective import StepObjective
from grpo_trainer.objective.tokens import ScoredTokens
from grpo_trainer.optimizers import make_optimizer
from grpo_trainer.policy import Policy
from grpo_trainer.randomness import derived_seed
from grpo_trainer.reference import Reference
from grpo_trainer.row_chunks import RowChunks
from grpo_trainer.training_rows import (
    MicroBatch,
    RowTensors,
    TrainingRow,
    completion_values,
    to_tensors,
)
from grpo_trainer.trees import ParameterTree, leaves, number
from grpo_trainer.update_metrics import describe_update


@dataclass(frozen=True)
class UpdateResult:
    """What one optimizer step did."""

    loss: float
    gradient_norm: float
    """L2 norm of the whole accumulated gradient, before clipping."""
    applied: bool
    """False when there was nothing to learn or the gradient was not finite."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Under TRL's names; empty when there was nothing to learn."""
    is_finite: bool = True
    """Whether loss and gradient are numbers."""


class StepGradient(NamedTuple):
    """Loss and gradients of a whole step, before clipping."""

    loss: mx.array
    policy_loss: mx.array
    gradients: ParameterTree
    sums: RowSums


class Learner:
    """Moves a policy's weights. One instance owns the optimizer state of a run."""

    def __init__(self, policy: Policy, config: GRPOConfig) -> None:
        self.policy = policy
        self.optimizer = make_optimizer(config, policy.weights)
        self.updates = 0
        """Optimizer steps applied, those before a resume included."""
        self._scorer = CompletionScorer(policy, config)
        self._chunks = RowChunks(policy.model, config)
        self.reference = Reference(policy) if config.kl_coef else None
        self.entropy_bonus = EntropyBonus(config)

    def with_logprobs(self, batch: MicroBatch, config: GRPOConfig) -> list[TrainingRow]:
        """`batch` with what has to be known of it before the weights move.

        That is the reference's log-probs for a KL term, and the policy's own when the rows will be
        used after an update.
        """
        rows = list(batch)
        if rows and config.reuses_rollouts:
            old, _ = self.scores(rows, config)
            rows = [replace(row, old_logprobs=own) for row, own in zip(rows, old, strict=True)]
        if rows and self.reference is not None:
            with self.reference.in_place():
                ref, _ = self.scores(rows, config)
            rows = [replace(row, ref_logprobs=own) for row, own in zip(rows, ref, strict=True)]
        return rows

    def update(
        self,
        micro_batches: Sequence[MicroBatch],
        config: GRPOConfig,
        step: int,
        *,
        learning_rate: float | None = None,
    ) -> UpdateResult:
        """Accumulates the gradients of `micro_batches` and takes one optimizer step.

        `learning_rate` is that of this step; without it the peak that `config` gives.
        Rows whose group had no spread count in every mean, but when no row has an advantage the
        weights stay as they are, weight decay and moments included.
        """
        batches = [batch for batch in micro_batches if batch]
        if any(row.advantage for batch in batches for row in batch):
            rate = learning_rate_of(config) if learning_rate is None else learning_rate
            result = self._update(batches, config, step, rate)
        else:
            result = UpdateResult(0.0, 0.0, applied=False)
        interval = config.ref_sync_interval
        if self.reference is not None and interval and step % interval == 0:
            self.reference.move_towards_policy(config.ref_mixup_alpha)
        return result

    def _update(
        self,
        micro_batches: Sequence[MicroBatch],
        config: GRPOConfig,
        step: int,
        learning_rate: float,
    ) -> UpdateResult:
        found = self.gradient(micro_batches, config, derived_seed(config.seed, "dropout", step))
        gradients, norm = clip_gradients(
            found.gradients, config.gradient_clip_norm, config.gradient_clip_value
        )
        mx.eval(gradients, norm)
        metrics = describe_update(found.sums)
        is_finite = math.isfinite(number(norm)) and math.isfinite(number(found.loss))
        # Masks and clips can leave nothing; decay and old moments must not move the weights then.
        applied = is_finite and number(norm) > 0
        if config.entropy_coef or config.adaptive_entropy:
            metrics["policy_loss"] = number(found.policy_loss)
            metrics["entropy_coef"] = self.entropy_bonus.weight(config)
        if applied:
            metrics["weight_delta"] = self._apply(gradients, learning_rate)
            self.entropy_bonus.observe(found.sums.mean("effective_entropy"), config)
        return UpdateResult(number(found.loss), number(norm), applied, metrics, is_finite)

    def gradient(
        self, micro_batches: Sequence[MicroBatch], config: GRPOConfig, seed: int = 0
    ) -> StepGradient:
        """Loss and gradients summed over the micro-batches; the weights stay as they are.

        `seed` decides what dropout drops.
        """
        objective = self._objective(micro_batches, config)
        total: Any = None
        sums = RowSums()
        self.policy.model.train()
        try:
            for index, batch in enumerate(micro_batches):
                num_tokens = sum(len(row.completion_ids) for row in batch)
                of_batch = replace(objective, micro_batch_tokens=num_tokens)
                for place, chunk in enumerate(self._chunks.of(batch)):
                    chunk_seed = derived_seed(seed, "chunk", index, place)
                    part = self._chunk_gradient(
                        to_tensors(chunk), of_batch, config, chunk_seed, sums
                    )
                    total = part if total is None else tree_map(mx.add, total, part)
                    # A sum left lazy would keep the gradients of every chunk until the last.
                    mx.eval(total)
        finally:
            self.policy.model.eval()
        loss, policy_loss, gradients = total
        return StepGradient(loss, policy_loss, gradients, sums)

    def _chunk_gradient(
        self,
        batch: RowTensors,
        objective: StepObjective,
        config: GRPOConfig,
        seed: int,
        sums: RowSums,
    ) -> tuple[mx.array, mx.array, ParameterTree]:
        """What some rows add to loss, policy loss and gradients, and to `sums`."""
        loss, found, gradients = self._scorer.loss_and_gradients(
            batch,
            Distribution.for_training(config),
            partial(_loss_of, batch, objective),
            entropy_gradient=bool(objective.entropy_coef),
            seed=seed,
        )
        sums.add(found.sums)
        return loss, found.policy_loss, gradients

    def is_finite(self) -> bool:
        """Whether every trained weight is a finite number."""
        return all(bool(mx.isfinite(w).all()) for _, w in leaves(self.policy.weights))

    def _objective(self, batches: Sequence[MicroBatch], config: GRPOConfig) -> StepObjective:
        rows = [row for batch in batches for row in batch]
        objective = StepObjective(
            config=config,
            total_rows=len(rows),
            total_tokens=sum(len(row.completion_ids) for row in rows),
            num_micro_batches=len(batches),
            entropy_coef=self.entropy_bonus.weight(config),
        )
        if config.top_entropy_quantile == 1:
            return objective
        # In the chunks that the gradient is computed in: a token at the threshold itself must have
        # the same bits then.
        by_row = chain.from_iterable(self.scores(batch, config)[1] for batch in batches)
        entropies = list(chain.from_iterable(by_row))
        threshold, kept = entropy_threshold(entropies, config.top_entropy_quantile)
        return replace(objective, entropy_threshold=threshold, entropy_tokens=kept)

    def scores(
        self, rows: MicroBatch, config: GRPOConfig
    ) -> tuple[list[list[float]], list[list[float]]]:
        """Log-probs and entropies of each row's completion under the policy as it is installed."""
        logprobs: list[list[float]] = []
        entropies: list[list[float]] = []
        for chunk in self._chunks.of(rows):
            found = self._scorer.scores(to_tensors(chunk), Distribution.for_training(config))
            logprobs += completion_values(found.logprobs_B_T, chunk)
            entropies += completion_values(found.entropy_B_T, chunk)
        return logprobs, entropies

    def _apply(self, gradients: ParameterTree, learning_rate: float) -> float:
        """Moves the weights; the L2 norm of the move."""
        before = self.policy.weights
        self.optimizer.learning_rate = learning_rate
        after = self.optimizer.apply_gradients(gradients, before)
        delta = tree_norm(tree_map(mx.subtract, after, before))
        self.policy.adopt(after)
        mx.eval(self.optimizer.state, delta)
        self.updates += 1
        return number(delta)


def _loss_of(
    batch: RowTensors, objective: StepObjective, scores: Scores
) -> tuple[mx.array, MicroBatchLoss]:
    old = batch.old_logprobs_B_T
    if old is None:
        old = mx.stop_gradient(scores.logprobs_B_T)  # sampled by these very weights: the ratio is 1
    sampling = batch.sampling_logprobs_B_T
    tokens = ScoredTokens(
        logprobs_B_T=scores.logprobs_B_T,
        entropy_B_T=scores.entropy_B_T,
        old_logprobs_B_T=old,
        sampling_logprobs_B_T=old if sampling is None else sampling,
        ref_logprobs_B_T=batch.ref_logprobs_B_T,
        advantages_B=batch.advantages_B,
        mask_B_T=batch.mask_B_T,
    )
    found = step_loss(tokens, objective)
    return found.loss, found
