"""Starting from adapters: those that load, and the one line for those that do not."""

from pathlib import Path

import mlx.core as mx
import pytest

from adapter_folders import (
    MADE_WITH,
    WEIGHTS,
    changed,
    learner_of,
    of_mlx_lm,
    save,
    trained_adapters,
)
from grpo_trainer.adapter_folder import with_adapter_settings
from grpo_trainer.checkpoint import load_checkpoint
from grpo_trainer.policy import load_policy
from grpo_trainer.tensor_file import read_tensors, write_tensors
from grpo_trainer.trees import leaves
from learners import are_identical, config_of, copy_of
from tiny_model import tiny_quantized


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    return trained_adapters(tmp_path / "adapters")


# --- what loads


def test_training_starts_from_the_adapters_with_their_settings(adapters: Path) -> None:
    config = config_of(adapter_path=str(adapters))
    effective = with_adapter_settings(config)
    assert {key: getattr(effective, key) for key in MADE_WITH} == MADE_WITH
    assert with_adapter_settings(effective) == effective
    policy = load_policy(config, lambda message: None)
    assert policy.fine_tune_type == "dora"
    assert are_identical(copy_of(policy.weights), read_tensors(adapters / WEIGHTS))
    trained = learner_of(config_of(**MADE_WITH, learning_rate=1e-2), steps=2).policy.model
    ids = mx.array([[1, 2, 3]])
    assert mx.array_equal(policy.model(ids), trained(ids)).item()


def test_a_config_without_adapters_to_start_from_is_left_alone() -> None:
    config = config_of(lora_rank=3)
    assert with_adapter_settings(config) is config


def test_equal_settings_may_be_given_too(adapters: Path) -> None:
    given = {**MADE_WITH, "lora_keys": MADE_WITH["lora_keys"][::-1]}
    effective = with_adapter_settings(config_of(adapter_path=str(adapters), **given))
    assert effective.lora_keys == MADE_WITH["lora_keys"]


def test_dropout_is_not_of_the_adapters(adapters: Path) -> None:
    config = config_of(adapter_path=str(adapters), lora_dropout=0.25)
    assert with_adapter_settings(config).lora_dropout == 0.25
    parameters = load_policy(config, lambda message: None).lora_parameters
    assert parameters is not None
    assert parameters["lora_parameters"]["dropout"] == 0.25


@pytest.mark.parametrize("num_layers", [-1, 0, 1, 2, 16])
def test_adapters_of_mlx_lm_which_name_no_keys_load(tmp_path: Path, num_layers: int) -> None:
    folder = of_mlx_lm(tmp_path / "theirs", num_layers)
    policy = load_policy(config_of(adapter_path=str(folder)), lambda message: None)
    assert are_identical(copy_of(policy.weights), read_tensors(folder / WEIGHTS))
    parameters = policy.lora_parameters
    assert parameters is not None
    assert parameters["num_layers"] == (1 if num_layers == 1 else 2)
    assert len(parameters["lora_parameters"]["keys"]) == 7


def test_adapters_of_an_older_mlx_lm_load(tmp_path: Path) -> None:
    """It adapted two projections without saying which, and had another name for the layers."""
    keys = ["self_attn.q_proj", "self_attn.v_proj"]
    folder = of_mlx_lm(tmp_path / "theirs", keys=keys)
    changed(lora_layers=16, num_layers=None)(folder)
    policy = load_policy(config_of(adapter_path=str(folder)), lambda message: None)
    assert are_identical(copy_of(policy.weights), read_tensors(folder / WEIGHTS))
    assert policy.lora_parameters is not None
    assert policy.lora_parameters["lora_parameters"]["keys"] == keys


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_adapters_of_16_bits_become_float32_masters(adapters: Path, dtype: mx.Dtype) -> None:
    path = adapters / WEIGHTS
    coarse = {name: weight.astype(dtype) for name, weight in read_tensors(path).items()}
    write_tensors(path, coarse)
    policy = load_policy(config_of(adapter_path=str(adapters)), lambda message: None)
    expected = {name: weight.astype(mx.float32) for name, weight in coarse.items()}
    assert are_identical(copy_of(policy.weights), expected)
    assert {weight.dtype for _, weight in leaves(policy.weights)} == {mx.float32}
    assert not policy.has_separate_masters


def test_adapters_of_a_float_model_start_on_its_quantized_form(adapters: Path) -> None:
    config = config_of(tiny_quantized(), adapter_path=str(adapters), learning_rate=1e-3)
    assert learner_of(config, steps=1).updates == 1


def test_the_reference_is_the_adapters_that_training_began_with(
    adapters: Path, tmp_path: Path
) -> None:
    """A resumed run has its own weights and the same reference as before."""
    config = config_of(adapter_path=str(adapters), kl_coef=0.1, learning_rate=1e-2)
    start = read_tensors(adapters / WEIGHTS)
    learner = learner_of(config, steps=1)
    assert learner.reference is not None
    assert are_identical(copy_of(learner.reference.weights), start)
    saved = save(tmp_path / "checkpoint-1", learner)
    resumed = learner_of(config)
    load_checkpoint(saved, resumed)
    assert are_identical(copy_of(resumed.policy.weights), copy_of(learner.policy.weights))
    assert not are_identical(copy_of(resumed.policy.weights), start)
    assert resumed.reference is not None
    assert are_identical(copy_of(resumed.reference.weights), start)
    assert resumed.reference.fingerprint == learner.reference.fingerprint
