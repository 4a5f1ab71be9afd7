"""How groups are sampled, compared and shared out over optimizer steps."""

from typing import Annotated, Literal

from msgspec import Meta

from grpo_protocol.settings.kinds import Count, key
from grpo_protocol.settings.model import ModelSettings

ScaleRewards = Literal["group", "batch", "none"]
RewardAggregation = Literal["sum_then_normalize", "normalize_then_sum"]


class GRPOSettings(ModelSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Group `GRPO`."""

    group_size: Annotated[
        Annotated[int, Meta(ge=2)], key("GRPO", "Completions for each prompt.")
    ] = 4
    batch_size: Annotated[Count, key("GRPO", "Prompts in one micro-batch.")] = 1
    gradient_accumulation_steps: Annotated[
        Count, key("GRPO", "Micro-batches whose gradients make one optimizer step.")
    ] = 1
    num_epochs: Annotated[Count, key("GRPO", "Passes over the dataset.")] = 1
    max_steps: Annotated[
        Count | None, key("GRPO", "Optimizer steps of the run; overrides `num_epochs`.")
    ] = None
    num_iterations: Annotated[
        Count,
        key("GRPO", "Times that each rollout is trained on; above 1 new and old policy differ."),
    ] = 1
    steps_per_generation: Annotated[
        Count | None,
        key(
            "GRPO",
            "Micro-batches that one sampling phase gives; a multiple of, and without it equal to, "
            "`gradient_accumulation_steps`.",
        ),
    ] = None
    scale_rewards: Annotated[
        ScaleRewards,
        key(
            "GRPO",
            "Divide advantages by the spread of the group, of the sampling phase (batch), or not.",
        ),
    ] = "group"
    advantage_normalization: Annotated[
        bool, key("GRPO", "False is `scale_rewards=none`: advantages are centred only.")
    ] = True
    multi_objective_aggregation: Annotated[
        RewardAggregation,
        key(
            "GRPO",
            "Compare completions by the sum of their rewards, or in each reward before the sum "
            "(GDPO).",
        ),
    ] = "sum_then_normalize"
    dynamic_sampling: Annotated[
        bool,
        key("GRPO", "Replace groups without spread by new prompts, so that every group teaches."),
    ] = False
    dynamic_sampling_metric: Annotated[
        str | None,
        key(
            "GRPO",
            "What must spread in a group that dynamic sampling keeps: a reward function's name, or "
            "`reward` for the weighted sum; without it the function with the largest weight.",
        ),
    ] = None
    dynamic_sampling_attempts: Annotated[
        Count,
        key("GRPO", "Most rounds of dynamic sampling in a sampling phase, the first included."),
    ] = 3
    degenerate_filter: Annotated[
        bool,
        key(
            "GRPO",
            "Leave completions that hit the length limit out of group statistics and update.",
        ),
    ] = False
    mask_truncated_completions: Annotated[
        bool,
        key(
            "GRPO",
            "Leave completions that did not end out of the update, not out of their group's mean.",
        ),
    ] = False
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**63 - 1)],
        key("GRPO", "All randomness is derived from it: same command, same run."),
    ] = 0

    @property
    def mini_batches_per_window(self) -> int:
        """Into how many optimizer steps' worth one sampling phase is dealt out."""
        per_step = self.gradient_accumulation_steps
        return (self.steps_per_generation or per_step) // per_step

    @property
    def rows_per_window(self) -> int:
        """Completions of one sampling phase."""
        micro_batches = self.steps_per_generation or self.gradient_accumulation_steps
        return micro_batches * self.batch_size * self.group_size

    @property
    def reuses_rollouts(self) -> bool:
        """Whether some rollouts are trained on by weights other than those that sampled them."""
        return self.num_iterations > 1 or self.mini_batches_per_window > 1
