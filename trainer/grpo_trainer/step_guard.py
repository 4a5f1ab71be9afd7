"""Notices steps that teach nothing or could ruin the weights, and says so."""

from collections.abc import Sequence

from grpo_protocol.config import GRPOConfig
from grpo_protocol.messages import LogLevel
from grpo_trainer.errors import TrainingError
from grpo_trainer.learner import UpdateResult
from grpo_trainer.output.reporter import Reporter
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rollout_batch import MiniBatch, RolloutBatch, ScoredGroup
from grpo_trainer.summary import has_spread

MAX_NAN_GRADIENTS = 100


class StepGuard:
    """Watches the steps of one run; each warning is given once."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._nan_gradients = 0
        self._given: set[str] = set()

    def look_at_rollouts(
        self, batch: RolloutBatch, prompts: Sequence[EncodedPrompt], config: GRPOConfig
    ) -> None:
        """Warns of what the completions of a sampling phase have in common."""
        groups = [group for mini_batch in batch.mini_batches for group in mini_batch.all_groups]
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
        """Says when nothing was learned, and ends a run whose gradients are not finite."""
        if not any(mini_batch.trained_advantages):
            self._explain_silence(step, mini_batch, config)
            return
        if update.applied:
            return
        if update.is_finite:
            self._say(
                "no gradient",
                f"step {step}: the gradient is exactly 0, so the weights stay as they are: masks "
                "or clips leave nothing; look at mismatch_correction, off_policy_mask_threshold, "
                "clip_epsilon and the filters",
            )
            return
        self._nan_gradients += 1
        self._reporter.log("error", "gradient or loss is not finite: the step changes no weights")
        if self._nan_gradients >= MAX_NAN_GRADIENTS:
            raise TrainingError(
                f"{MAX_NAN_GRADIENTS} steps had gradients that are not finite; "
                "lower learning_rate, or look at the rewards"
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
