"""What the settings of an objective mean that may not be what was meant; said once at the start."""

from grpo_protocol.config import GRPOConfig
from grpo_trainer.distribution import Distribution
from grpo_trainer.plan import reuses_rollouts

_MEANS_OVER_ROWS = ("grpo", "luspo", "sapo", "gmpo")


def objective_notes(config: GRPOConfig) -> list[str]:
    """Warnings, one line each; none for the defaults."""
    notes = []
    if Distribution.of(config).truncates and reuses_rollouts(config):
        notes.append(
            "top_k, top_p or min_p with rollouts that are used more than once: which tokens a "
            "filter leaves depends on the weights, so the ratio compares the unfiltered "
            "distributions; mismatch_correction weighs the difference to the sampler"
        )
    if Distribution.of(config).truncates and config.kl_coef and not reuses_rollouts(config):
        notes.append(
            "kl_coef with top_k, top_p or min_p: policy and reference are each scored within the "
            "tokens that their own filter leaves, so the KL is that of the truncated distributions"
        )
    if config.lora_dropout and config.kl_coef:
        notes.append(
            "kl_coef with lora_dropout: the policy is scored with dropout and the reference "
            "without, so the KL starts above 0"
        )
    level = config.importance_sampling_level
    if level == "sequence" and config.loss_type not in _MEANS_OVER_ROWS:
        notes.append(
            f"importance_sampling_level=sequence with loss_type={config.loss_type}: the ratio of "
            "a whole completion is weighed by its length; loss_type=grpo weighs completions alike"
        )
    if config.off_policy_mask_threshold is not None and not reuses_rollouts(config):
        notes.append(
            "off_policy_mask_threshold: each rollout is used once, so only differences between "
            "sampling and training can reach it"
        )
    return notes
