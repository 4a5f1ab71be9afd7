"""The objective: what is made of ratio, advantage, reference and entropy."""

from typing import Annotated, Literal

from grpo_protocol.settings.grpo import GRPOSettings
from grpo_protocol.settings.kinds import Interval, NotNegative, Positive, Share, key

LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo", "gmpo"]
RatioLevel = Literal["token", "sequence"]
MismatchCorrection = Literal[
    "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
]


class LossSettings(GRPOSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Group `Loss`."""

    loss_type: Annotated[
        LossType, key("Loss", "What the ratio does to a token, and how tokens become one number.")
    ] = "grpo"
    importance_sampling_level: Annotated[
        RatioLevel | None,
        key(
            "Loss",
            "Ratio of each token, or of the whole completion (GSPO); without it what the loss "
            "defines: sequence for luspo and gmpo, token for the others.",
        ),
    ] = None
    clip_epsilon: Annotated[Positive, key("Loss", "Lower, and by default upper, ratio clip.")] = 0.2
    clip_epsilon_high: Annotated[
        Positive | None,
        key(
            "Loss",
            "Upper ratio clip when it differs from the lower one; for cispo the cap of the ratio "
            "itself, 5 without it.",
        ),
    ] = None
    delta: Annotated[
        Positive | None,
        key("Loss", "Cap of the ratio where the clip leaves it free (A < 0); above 1 + clip."),
    ] = None
    sapo_temperature_pos: Annotated[
        Positive, key("Loss", "Steepness of sapo's gate where A > 0.")
    ] = 1.0
    sapo_temperature_neg: Annotated[
        Positive, key("Loss", "Steepness of sapo's gate where A <= 0.")
    ] = 1.05
    vespo_k_pos: Annotated[NotNegative, key("Loss", "Power of vespo's weight where A >= 0.")] = 2.0
    vespo_lambda_pos: Annotated[
        NotNegative, key("Loss", "Decay of vespo's weight where A >= 0.")
    ] = 3.0
    vespo_k_neg: Annotated[NotNegative, key("Loss", "Power of vespo's weight where A < 0.")] = 3.0
    vespo_lambda_neg: Annotated[
        NotNegative, key("Loss", "Decay of vespo's weight where A < 0.")
    ] = 2.0
    gmpo_clip: Annotated[Positive, key("Loss", "Largest log-ratio of a token in gmpo.")] = 0.4

    kl_coef: Annotated[
        NotNegative, key("Loss", "Weight of the KL divergence (k3) to the reference; 0 for none.")
    ] = 0.0
    kl_bias_correction: Annotated[
        bool, key("Loss", "Multiply the KL of a token by its ratio (DeepSeek-V3.2).")
    ] = False
    ref_sync_interval: Annotated[
        Interval,
        key("Loss", "Steps after which the reference moves towards the policy; 0 for never."),
    ] = 0
    ref_mixup_alpha: Annotated[
        Share, key("Loss", "Share of the policy in the reference after such a move.")
    ] = 0.6

    entropy_coef: Annotated[
        NotNegative, key("Loss", "Bonus for mean token entropy; the start when adaptive.")
    ] = 0.0
    adaptive_entropy: Annotated[
        bool,
        key("Loss", "Raise the bonus by a notch while entropy is at or below target, else lower."),
    ] = False
    entropy_target: Annotated[
        NotNegative, key("Loss", "Entropy in nats below which the adaptive bonus acts.")
    ] = 0.2
    entropy_coef_delta: Annotated[
        Positive, key("Loss", "Notch of the adaptive bonus, each step.")
    ] = 0.005
    entropy_coef_min: Annotated[NotNegative, key("Loss", "Least adaptive bonus.")] = 0.0
    entropy_coef_max: Annotated[NotNegative, key("Loss", "Largest adaptive bonus.")] = 1.0
    top_entropy_quantile: Annotated[
        Share, key("Loss", "Train on this share of the tokens, those of highest entropy.")
    ] = 1.0

    mismatch_correction: Annotated[
        MismatchCorrection,
        key(
            "Loss",
            "Weigh by training / sampling probability, of each token or of the completion: "
            "truncate caps the weight (TIS), mask drops what is outside (MIS).",
        ),
    ] = "none"
    mismatch_max: Annotated[Positive, key("Loss", "Largest such weight.")] = 3.0
    mismatch_min: Annotated[Positive | None, key("Loss", "Least such weight; none without it.")] = (
        None
    )
    off_policy_mask_threshold: Annotated[
        Positive | None,
        key(
            "Loss",
            "Drop a completion with A < 0 once sampling and policy differ by more nats a token.",
        ),
    ] = None
