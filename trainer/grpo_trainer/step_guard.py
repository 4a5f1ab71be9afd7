"""Notices steps that teach nothing or could ruin the weights, and says so."""

from collections.abc import Sequence

from grpo_protocol.config import GRPOConfig
from grpo_trainer.errors import TrainingError
from grpo_trainer.group_selection import has_spread
from grpo_trainer.learner import UpdateResult
from grpo_trainer.output.reporter import Reporter
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rollout_metrics import trained_advantages
from grpo_trainer.rollout_window import RolloutWindow, ScoredGroup, Share

MAX_NAN_GRADIENTS = 100


class StepGuard:
    """Watches the steps of one run; each warning is given once."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._nan_gradients = 0
        self._given: set[str] = set()

    def look_at_rollouts(self, window: RolloutWindow, prompts: Sequence[EncodedPrompt]) -> None:
        """Warns of what the completions of a window have in common."""
        groups = [group for share in window.shares for group in share.all_groups]
        if groups and all(_is_one_text(group) for group in groups):
            self._warn(
                "one text",
                "all completions of every group are identical at temperature="
                f"{window.temperature}: there is nothing to compare; raise the temperature",
            )
        silent = [group for group in groups if None in group.rewards]
        if silent:
            missing = sum(group.rewards.count(None) for group in silent)
            total = sum(len(group.rewards) for group in groups)
            self._warn(
                "no reward",
                f"step {window.first_step}: {missing} of {total} completions have no reward, "
                f"because {_all_of(list(silent[0].reward_parts))} abstained, first at "
                f"{prompts[silent[0].prompt].example.source}; they get no advantage",
            )

    def look_at_update(
        self, step: int, share: Share, update: UpdateResult, config: GRPOConfig
    ) -> None:
        """Says when nothing was learned, and ends a run whose gradients are not finite."""
        if not any(trained_advantages(share)):
            self._explain_silence(step, share, config)
            return
        if update.applied:
            return
        self._nan_gradients += 1
        self._reporter.log("error", "gradient or loss is not finite: the step changes no weights")
        if self._nan_gradients >= MAX_NAN_GRADIENTS:
            raise TrainingError(
                f"{MAX_NAN_GRADIENTS} steps had gradients that are not finite; "
                "lower learning_rate, or look at the rewards"
            )

    def _explain_silence(self, step: int, share: Share, config: GRPOConfig) -> None:
        advantages = [value for group in share.groups for value in group.advantages]
        left_out = advantages.count(None)
        differ = any(has_spread(group.rewards) for group in share.groups)
        if left_out and (differ or left_out == len(advantages)):
            self._warn(
                "left out",
                f"step {step}: {left_out} of {len(advantages)} completions did not end and are "
                "left out, so there is nothing to learn from; raise "
                f"max_completion_length={config.max_completion_length}",
            )
            return
        self._warn(
            "no signal",
            "no learning signal: within each group all rewards are equal, so the weights "
            "stay as they are; vary the task's difficulty or the reward",
        )

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._given:
            self._given.add(kind)
            self._reporter.log("warn", message)


def _is_one_text(group: ScoredGroup) -> bool:
    return len({tuple(completion.token_ids) for completion in group.completions}) == 1


def _all_of(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"all of {', '.join(names)}"
