"""A setting that would change nothing is refused."""

import pytest

from grpo_protocol.config_input import ConfigError, load_config, parse_assignments

WITHOUT_EFFECT = [
    ("fine_tune_type=full lora_rank=4", "lora_rank=4", "fine_tune_type=lora or dora"),
    ("fine_tune_type=full lora_scale=2", "lora_scale=2.0", "fine_tune_type=lora or dora"),
    ("fine_tune_type=full lora_dropout=0.1", "lora_dropout=0.1", "fine_tune_type=lora or dora"),
    ("fine_tune_type=full lora_layers=4", "lora_layers=4", "fine_tune_type=lora or dora"),
    (
        "fine_tune_type=full lora_keys=lm_head",
        "lora_keys=['lm_head']",
        "fine_tune_type=lora or dora",
    ),
    (
        "fine_tune_type=full adapter_path=adapters",
        "adapter_path='adapters'",
        "fine_tune_type=lora or dora",
    ),
    ("optimizer_type=adafactor adamw_beta1=0.8", "adamw_beta1=0.8", "optimizer_type=adamw or muon"),
    ("optimizer_type=adafactor adamw_beta2=0.8", "adamw_beta2=0.8", "optimizer_type=adamw or muon"),
    ("optimizer_type=adafactor adamw_eps=1e-6", "adamw_eps=1e-06", "optimizer_type=adamw or muon"),
    ("sgd_momentum=0.5", "sgd_momentum=0.5", "optimizer_type=sgd"),
    ("muon_momentum=0.5", "muon_momentum=0.5", "optimizer_type=muon"),
    (
        "use_parallel_batch_generation=false generation_chunk_size=4",
        "generation_chunk_size=4",
        "use_parallel_batch_generation",
    ),
    (
        "dynamic_sampling_metric=reward",
        "dynamic_sampling_metric='reward'",
        "dynamic_sampling=true",
    ),
    ("dynamic_sampling_attempts=5", "dynamic_sampling_attempts=5", "dynamic_sampling=true"),
    ("sapo_temperature_pos=2", "sapo_temperature_pos=2.0", "loss_type=sapo"),
    ("loss_type=gmpo sapo_temperature_neg=2", "sapo_temperature_neg=2.0", "loss_type=sapo"),
    ("vespo_k_pos=1", "vespo_k_pos=1.0", "loss_type=vespo"),
    ("vespo_lambda_pos=1", "vespo_lambda_pos=1.0", "loss_type=vespo"),
    ("vespo_k_neg=1", "vespo_k_neg=1.0", "loss_type=vespo"),
    ("loss_type=sapo vespo_lambda_neg=1", "vespo_lambda_neg=1.0", "loss_type=vespo"),
    ("gmpo_clip=0.2", "gmpo_clip=0.2", "loss_type=gmpo"),
    ("kl_bias_correction=true", "kl_bias_correction=True", "kl_coef above 0"),
    ("ref_sync_interval=64", "ref_sync_interval=64", "kl_coef above 0"),
    ("kl_coef=0.1 ref_mixup_alpha=0.5", "ref_mixup_alpha=0.5", "ref_sync_interval"),
    ("entropy_target=1", "entropy_target=1.0", "adaptive_entropy=true"),
    ("entropy_coef_delta=0.1", "entropy_coef_delta=0.1", "adaptive_entropy=true"),
    ("entropy_coef_min=0.1", "entropy_coef_min=0.1", "adaptive_entropy=true"),
    ("entropy_coef=0.1 entropy_coef_max=2", "entropy_coef_max=2.0", "adaptive_entropy=true"),
    ("mismatch_min=0.5", "mismatch_min=0.5", "mismatch_correction"),
    ("mismatch_max=2", "mismatch_max=2.0", "mismatch_correction"),
    ("repetition_context_size=64", "repetition_context_size=64", "repetition_penalty"),
    ("presence_context_size=64", "presence_context_size=64", "presence_penalty"),
    (
        "presence_penalty=1 frequency_context_size=64",
        "frequency_context_size=64",
        "frequency_penalty",
    ),
    ("max_ngram_repeats=0 ngram_size=4", "ngram_size=4", "max_ngram_repeats"),
]


@pytest.mark.parametrize(("words", "start", "needed"), WITHOUT_EFFECT)
def test_what_would_do_nothing_is_refused_with_what_it_needs(
    words: str, start: str, needed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({}, parse_assignments(words.split()))
    assert str(caught.value) == f"{start}: has no effect without {needed}"
