"""A setting to compare, in the project's words and in TRL's."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tiny_model import Kind

PROMPTS = 4
GROUP_SIZE = 4
MAX_COMPLETION_LENGTH = 16
REWARD_WEIGHTS = [1.0, 0.5]
KINDS: tuple[Kind, ...] = ("qwen3", "llama")

_TRL_NAMES = {
    "clip_epsilon": "epsilon",
    "clip_epsilon_high": "epsilon_high",
    "kl_coef": "beta",
    "kl_bias_correction": "use_bias_correction_kl",
    "mismatch_correction": "vllm_importance_sampling_mode",
    "mismatch_max": "vllm_importance_sampling_clip_max",
    "mismatch_min": "vllm_importance_sampling_clip_min",
}
"""Where TRL's name for a setting is another."""

# Sampling at temperature 1 is not the project's default, nor is this KL TRL's.
_BASE: dict[str, Any] = {"temperature": 1.0, "kl_bias_correction": False}


@dataclass(frozen=True)
class Case:
    """One optimizer step under `settings`, whose keys are those of the project's config."""

    name: str
    kind: Kind
    settings: dict[str, Any] = field(default_factory=dict)
    off_policy: bool = True
    """Whether the completions were sampled by other weights, so that ratios are not 1."""
    abstains: bool = False
    """Whether the reward functions leave some rows without a number."""

    def __str__(self) -> str:
        return f"{self.name}-{self.kind}"

    @property
    def accumulation(self) -> int:
        """Micro-batches of the step."""
        return int(self.settings.get("gradient_accumulation_steps", 1))

    @property
    def micro_batches(self) -> int:
        """Those of the whole rollout."""
        return int(self.settings.get("steps_per_generation", self.accumulation))

    @property
    def last_step(self) -> int:
        """The optimizer step to compare: the first, or the first that uses its rows again."""
        return self.micro_batches // self.accumulation + 1 if self.off_policy else 1

    @property
    def corrects_mismatch(self) -> bool:
        """Whether the sampler's own log-probs count."""
        return "mismatch_correction" in self.settings

    def our_settings(self) -> dict[str, Any]:
        """For `GRPOConfig` of the project."""
        settings = {
            "fine_tune_type": "full",
            "dtype": "float32",
            "group_size": GROUP_SIZE,
            "batch_size": PROMPTS // self.micro_batches,
            "max_completion_length": MAX_COMPLETION_LENGTH,
            "reward_weights": REWARD_WEIGHTS,
            "num_iterations": 2 if self.off_policy else 1,
            **_BASE,
            **self.settings,
        }
        if not settings.get("kl_coef"):
            del settings["kl_bias_correction"]
        return settings

    def trl_settings(self) -> dict[str, Any]:
        """For `trl.GRPOConfig`."""
        told = {"importance_sampling_level": "token", **_BASE, **self.settings}
        if told["loss_type"] == "luspo":
            told["importance_sampling_level"] = "sequence"
        return {
            "num_generations": GROUP_SIZE,
            "per_device_train_batch_size": PROMPTS * GROUP_SIZE // self.micro_batches,
            "max_completion_length": MAX_COMPLETION_LENGTH,
            "reward_weights": REWARD_WEIGHTS,
            "num_iterations": 2 if self.off_policy else 1,
            **{_TRL_NAMES.get(name, name): value for name, value in told.items()},
        }


LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "clip_epsilon": 0.05},
    "cispo": {"loss_type": "cispo", "clip_epsilon_high": 1.2},
    "sapo": {"loss_type": "sapo"},
    "luspo": {"loss_type": "luspo", "clip_epsilon": 0.05},
    "vespo": {"loss_type": "vespo"},
}

_VARIANTS: dict[str, dict[str, Any]] = {
    "clip_higher": {"clip_epsilon": 0.1, "clip_epsilon_high": 0.28},
    "delta": {"delta": 1.3},
    "cool": {"temperature": 0.6, "kl_coef": 0.1},
    "hot": {"temperature": 1.5, "kl_coef": 0.1},
    "top_entropy": {"top_entropy_quantile": 0.4, "kl_coef": 0.1},
    "entropy_bonus": {"entropy_coef": 0.05},
    "top_entropy_bonus": {"entropy_coef": 0.05, "top_entropy_quantile": 0.4},
    "kl_bias_correction": {"kl_coef": 0.1, "kl_bias_correction": True},
    "filters": {"top_p": 0.7, "top_k": 100},
    "off_policy_mask": {"off_policy_mask_threshold": 0.02},
    "off_policy_mask_of_sampler": {
        "off_policy_mask_threshold": 0.02,
        "mismatch_correction": "token_truncate",
    },
    "token_truncate": {"mismatch_correction": "token_truncate", "mismatch_max": 1.2},
    "token_mask": {"mismatch_correction": "token_mask", "mismatch_max": 1.3, "mismatch_min": 0.8},
    "sequence_truncate": {"mismatch_correction": "sequence_truncate", "mismatch_max": 1.2},
    "sequence_mask": {
        "mismatch_correction": "sequence_mask",
        "mismatch_max": 1.4,
        "mismatch_min": 0.7,
    },
}
"""On top of dapo."""

_OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "sapo_temperatures": {
        "loss_type": "sapo",
        "sapo_temperature_pos": 2.0,
        "sapo_temperature_neg": 3.0,
    },
    "vespo_powers": {
        "loss_type": "vespo",
        "vespo_k_pos": 1.0,
        "vespo_lambda_pos": 1.5,
        "vespo_k_neg": 2.0,
        "vespo_lambda_neg": 1.0,
    },
    "vespo_mismatch": {
        "loss_type": "vespo",
        "mismatch_correction": "token_truncate",
        "mismatch_max": 1.2,
    },
    "luspo_kl": {**LOSSES["luspo"], "kl_coef": 0.1, "kl_bias_correction": True},
    "everything": {
        "loss_type": "dr_grpo",
        "clip_epsilon": 0.1,
        "clip_epsilon_high": 0.28,
        "delta": 1.4,
        "temperature": 0.8,
        "kl_coef": 0.1,
        "entropy_coef": 0.01,
        "top_entropy_quantile": 0.6,
        "scale_rewards": "batch",
    },
}

ADVANTAGES: dict[str, dict[str, Any]] = {
    "group": {"scale_rewards": "group"},
    "batch": {"scale_rewards": "batch"},
    "none": {"scale_rewards": "none"},
    "gdpo": {"multi_objective_aggregation": "normalize_then_sum"},
}


def loss_cases() -> Iterator[Case]:
    """Every loss, with and without KL, in one micro-batch and in four."""
    for kind in KINDS:
        for loss, settings in LOSSES.items():
            for kl_coef in (0.0, 0.1):
                for accumulation in (1, 4):
                    shared = {"kl_coef": kl_coef, "gradient_accumulation_steps": accumulation}
                    name = f"{loss}-kl{kl_coef:g}-accumulation{accumulation}"
                    yield Case(name, kind, {**settings, **shared})
            yield Case(f"{loss}-on_policy", kind, settings, off_policy=False)


def setting_cases() -> Iterator[Case]:
    """Every other setting of the objective, in one micro-batch."""
    for kind in KINDS:
        for name, settings in _VARIANTS.items():
            yield Case(name, kind, {"loss_type": "dapo", **settings})
            if "mismatch_correction" in settings:
                name = f"{name}-on_policy"
                yield Case(name, kind, {"loss_type": "dapo", **settings}, off_policy=False)
        for name, settings in _OWN_SETTINGS.items():
            yield Case(name, kind, settings)


def advantage_cases() -> Iterator[Case]:
    """Every way to compare rewards; one number for each row, and not for each."""
    for name, settings in ADVANTAGES.items():
        for abstains in (False, True):
            suffix = "-abstaining" if abstains else ""
            yield Case(
                f"advantages_{name}{suffix}",
                "qwen3",
                {"loss_type": "grpo", **settings},
                abstains=abstains,
            )
