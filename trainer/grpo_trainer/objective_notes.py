"""What the settings of an objective mean that may not be what was meant; said once at the start."""

from grpo_protocol.config import GRPOConfig
from grpo_trainer.distribution import Distribution

_WIDE_FOR_SEQUENCES = 0.05
_MEANS_OVER_ROWS = ("grpo", "luspo", "sapo", "gmpo")


def objective_notes(config: GRPOConfig) -> list[str]:
    """Warnings, one line each; none for the defaults."""
    notes = []
    if Distribution.of(config).truncates and config.reuses_rollouts:
        notes.append(
            "top_k, top_p or min_p with rollouts that are used more than once: which tokens a "
            "filter leaves depends on the weights, so the ratio compares the unfiltered "
            "distributions; mismatch_correction weighs the difference to the sampler"
        )
    if Distribution.of(config).truncates and config.kl_coef and not config.reuses_rollouts:
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
    if config.off_policy_mask_threshold is not None and not config.reuses_rollouts:
        notes.append(
            "off_policy_mask_threshold: each rollout is used once, so only differences between "
            "sampling and training can reach it"
        )
    by_sequence = level == "sequence" or config.loss_type == "luspo"
    if by_sequence and config.reuses_rollouts and config.clip_epsilon >= _WIDE_FOR_SEQUENCES:
        notes.append(
            f"clip_epsilon={config.clip_epsilon} with a ratio of whole completions, which stays "
            "near 1: hardly anything is clipped; GSPO's paper uses 3e-4, LUSPO's 2e-3"
        )
    return notes
