"""The objective: what is made of ratio, advantage, reference and entropy."""

from typing import Annotated, Literal

from grpo_protocol.settings.grpo import GRPOSettings
from grpo_protocol.settings.kinds import Interval, NotNegative, Positive, Proportion, key

LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo", "gmpo"]
RatioLevel = Literal["token", "sequence"]
CLIPPED_LOSSES = frozenset({"grpo", "bnpo", "dr_grpo", "dapo", "luspo"})
"""Those whose ratio is clipped at 1 - `clip_epsilon` and 1 + `clip_epsilon_high`."""
SEQUENCE_LOSSES = frozenset({"luspo", "gmpo"})
"""Those that are defined on the ratio of the whole completion."""
MismatchCorrection = Literal[
    "none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"
]


class LossSettings(GRPOSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Group `Loss`."""

    loss_type: Annotated[
        LossType,
        key("Loss", "The loss: how the ratio weighs a token, and how tokens become one number."),
    ] = "grpo"
    importance_sampling_level: Annotated[
        RatioLevel | None,
        key(
            "Loss",
            "New to old probability of each token, or of the whole completion (GSPO); without it "
            "what the loss defines: sequence for luspo and gmpo, token for the others.",
        ),
    ] = None
    clip_epsilon: Annotated[
        Positive,
        key(
            "Loss",
            "The ratio of new to old probability is clipped at 1 - this and, by default, 1 + this.",
        ),
    ] = 0.2
    clip_epsilon_high: Annotated[
        Positive | None,
        key(
            "Loss",
            "The ratio is clipped at 1 + this, without it at 1 + `clip_epsilon`; for cispo the cap "
            "of the ratio itself, 5 without it.",
        ),
    ] = None
    delta: Annotated[
        Positive | None,
        key(
            "Loss",
            "Cap of the ratio where the clip leaves it free, at advantages below 0; above 1 + the "
            "upper clip, off without it.",
        ),
    ] = None
    sapo_temperature_pos: Annotated[
        Positive, key("Loss", "Steepness of sapo's gate at advantages above 0.")
    ] = 1.0
    sapo_temperature_neg: Annotated[
        Positive, key("Loss", "Steepness of sapo's gate at advantages up to 0.")
    ] = 1.05
    vespo_k_pos: Annotated[
        NotNegative, key("Loss", "Power of vespo's weight at advantages from 0 on.")
    ] = 2.0
    vespo_lambda_pos: Annotated[
        NotNegative, key("Loss", "Decay of vespo's weight at advantages from 0 on.")
    ] = 3.0
    vespo_k_neg: Annotated[
        NotNegative, key("Loss", "Power of vespo's weight at advantages below 0.")
    ] = 3.0
    vespo_lambda_neg: Annotated[
        NotNegative, key("Loss", "Decay of vespo's weight at advantages below 0.")
    ] = 2.0
    gmpo_clip: Annotated[
        Positive, key("Loss", "Bound of a token's log-ratio in gmpo, on either side.")
    ] = 0.4

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
        Proportion,
        key("Loss", "Share of the policy in the reference after `ref_sync_interval` moved it."),
    ] = 0.6

    entropy_coef: Annotated[
        NotNegative,
        key(
            "Loss", "Weight of the bonus for mean token entropy; its start with `adaptive_entropy`."
        ),
    ] = 0.0
    adaptive_entropy: Annotated[
        bool,
        key(
            "Loss",
            "Raise the entropy bonus by a notch while entropy is at or below target, else lower.",
        ),
    ] = False
    entropy_target: Annotated[
        NotNegative, key("Loss", "Entropy in nats at or below which the adaptive bonus acts.")
    ] = 0.2
    entropy_coef_delta: Annotated[
        Positive,
        key("Loss", "Notch by which each step moves the weight of the adaptive entropy bonus."),
    ] = 0.005
    entropy_coef_min: Annotated[
        NotNegative, key("Loss", "Least weight of the adaptive entropy bonus.")
    ] = 0.0
    entropy_coef_max: Annotated[
        NotNegative, key("Loss", "Largest weight of the adaptive entropy bonus.")
    ] = 1.0
    top_entropy_quantile: Annotated[
        Proportion, key("Loss", "Train on this share of the tokens, those of highest entropy.")
    ] = 1.0

    mismatch_correction: Annotated[
        MismatchCorrection,
        key(
            "Loss",
            "Weigh by training / sampling probability, of each token or of the completion: "
            "truncate caps the weight (TIS), mask drops what is outside (MIS).",
        ),
    ] = "none"
    mismatch_max: Annotated[
        Positive, key("Loss", "Upper bound of the weight in `mismatch_correction`.")
    ] = 3.0
    mismatch_min: Annotated[
        Positive | None,
        key("Loss", "Lower bound of the weight in `mismatch_correction`; none without it."),
    ] = None
    off_policy_mask_threshold: Annotated[
        Positive | None,
        key(
            "Loss",
            "Drop a completion of an advantage below 0 once the policy finds it less likely than "
            "sampling did, by more nats a token than this; off without it.",
        ),
    ] = None
