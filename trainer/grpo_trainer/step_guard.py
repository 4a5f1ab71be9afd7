"""Notices steps that teach nothing or could ruin the weights, and says so."""

import math
from collections.abc import Sequence

from grpo_protocol.config import GRPOConfig
from grpo_protocol.messages import LogLevel
from grpo_trainer.errors import TrainingError
from grpo_trainer.learner import UpdateResult
from grpo_trainer.learning_rate import learning_rate_of
from grpo_trainer.output.reporter import Reporter
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rollout_batch import MiniBatch, RolloutBatch, ScoredGroup
from grpo_trainer.summary import has_spread


class StepGuard:
    """Watches the steps of one run; each warning is given once."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self.nan_gradients = 0
        """Steps so far whose loss or gradient was not finite; a resumed run sets what was before.

        Without that, a run that is interrupted again and again would never come to its end.
        """
        self._given: set[str] = set()

    def look_at_rollouts(
        self, batch: RolloutBatch, prompts: Sequence[EncodedPrompt], config: GRPOConfig
    ) -> None:
        """Warns of what the completions of a sampling phase have in common.

        Raises `TrainingError` when the model no longer gives numbers.
        """
        groups = [group for mini_batch in batch.mini_batches for group in mini_batch.all_groups]
        _expect_numbers(batch.first_step, groups)
        if groups and all(_is_one_text(group) for group in groups):
            self._say(
                "one text",
                f"step {batch.first_step}: all completions of every group are identical at "
                f"temperature={batch.temperature}, so there is nothing to compare; unless the task "
                "is solved, raise the temperature",
            )
        cut = sum(item.is_repetitive for group in groups for item in group.completions)
        if cut:
            self._say(
                "repetition",
                f"step {batch.first_step}: {cut} completions were ended for repeating themselves "
                f"({config.max_consecutive_tokens} equal tokens, or a pattern of up to "
                f"{config.ngram_size} tokens {config.max_ngram_repeats} times); if such texts may "
                "be right, raise max_consecutive_tokens and max_ngram_repeats, or set them to 0",
                level="info",
            )
        silent = [group for group in groups if None in group.rewards]
        if silent:
            missing = sum(group.rewards.count(None) for group in silent)
            total = sum(len(group.rewards) for group in groups)
            self._say(
                "no reward",
                f"step {batch.first_step}: {missing} of {total} completions have no reward, "
                f"because {_all_of(list(silent[0].reward_parts))} abstained, first at "
                f"{prompts[silent[0].prompt].example.source}; they get no advantage",
            )

    def look_at_update(
        self, step: int, mini_batch: MiniBatch, update: UpdateResult, config: GRPOConfig
    ) -> None:
        """Says when nothing was learned.

        Raises `TrainingError` when the weights are no longer finite, or when as many steps as
        `config.max_nan_gradients` had a loss or a gradient that is not.
        """
        if not any(mini_batch.trained_advantages):
            self._explain_silence(step, mini_batch, config)
        elif update.applied:
            _expect_finite_move(step, update, config)
        elif not update.is_finite:
            self._count_nan(step, config)
        else:
            self._say(
                "no gradient",
                f"step {step}: the gradient is exactly 0, so the weights stay as they are: masks "
                "or clips leave nothing; look at mismatch_correction, off_policy_mask_threshold, "
                "clip_epsilon and the filters",
            )

    def _count_nan(self, step: int, config: GRPOConfig) -> None:
        self.nan_gradients += 1
        limit = config.max_nan_gradients
        self._reporter.log(
            "error",
            f"step {step}: loss or gradient is not finite, so the weights stay as they are "
            f"({self.nan_gradients} of max_nan_gradients={limit})",
        )
        if self.nan_gradients >= limit:
            raise TrainingError(
                f"step {step}: {self.nan_gradients} steps had a loss or gradient that is not "
                f"finite; lower learning_rate={learning_rate_of(config):g}, set dtype=float32, or "
                f"look at the rewards; max_nan_gradients={limit} is how many end a run"
            )

    def _explain_silence(self, step: int, mini_batch: MiniBatch, config: GRPOConfig) -> None:
        advantages = [value for group in mini_batch.groups for value in group.advantages]
        left_out = advantages.count(None)
        differ = any(has_spread(group.rewards) for group in mini_batch.groups)
        if left_out and (differ or left_out == len(advantages)):
            self._say(
                "left out",
                f"step {step}: {left_out} of {len(advantages)} completions did not end and are "
                f"left out, so there is nothing to learn from; {_remedy(mini_batch, config)}",
            )
            return
        self._say(
            "no signal",
            f"no learning signal at step {step}: within each group all rewards are equal, so the "
            "weights stay as they are; unless the task is solved, vary its difficulty or the "
            "reward",
        )

    def _say(self, kind: str, message: str, level: LogLevel = "warn") -> None:
        if kind not in self._given:
            self._given.add(kind)
            self._reporter.log(level, message)


def _expect_numbers(step: int, groups: Sequence[ScoredGroup]) -> None:
    completions = [completion for group in groups for completion in group.completions]
    if completions and not any(math.isfinite(sum(item.logprobs)) for item in completions):
        raise TrainingError(
            f"step {step}: no completion has log-probs that are finite, so the model itself gives "
            "no numbers; set dtype=float32, or resume from an earlier checkpoint with a lower "
            "learning_rate"
        )


def _expect_finite_move(step: int, update: UpdateResult, config: GRPOConfig) -> None:
    """The norm of the move is not finite when any weight is not."""
    distance = update.metrics.get("weight_delta")
    if distance is not None and not math.isfinite(distance):
        raise TrainingError(
            f"step {step}: the update made weights that are not finite, though the gradient was; "
            f"lower learning_rate={learning_rate_of(config):g} and resume from a checkpoint before "
            "this step"
        )


def _remedy(mini_batch: MiniBatch, config: GRPOConfig) -> str:
    """What would let completions end, judged by what cut most of them."""
    completions = [item for group in mini_batch.groups for item in group.completions]
    repetitive = sum(item.is_repetitive for item in completions)
    if repetitive > sum(item.is_at_limit for item in completions):
        return "raise max_consecutive_tokens or max_ngram_repeats: most were ended as repetitive"
    return f"raise max_completion_length={config.max_completion_length}"


def _is_one_text(group: ScoredGroup) -> bool:
    return len({tuple(completion.token_ids) for completion in group.completions}) == 1


def _all_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"all of {', '.join(names)}"
