"""Adapters that training cannot start from, and the one line for each."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import msgspec
import pytest

from adapter_folders import (
    CONFIG,
    WEIGHTS,
    changed,
    of_mlx_lm,
    parameter,
    poison,
    tensor,
    trained_adapters,
)
from architectures import make_architecture_folder
from grpo_protocol import ConfigError, GRPOConfig
from grpo_trainer.adapter_folder import with_adapter_settings
from grpo_trainer.errors import ModelError
from grpo_trainer.policy import load_policy
from grpo_trainer.tensor_file import write_tensors
from learners import config_of


@pytest.fixture
def adapters(tmp_path: Path) -> Path:
    return trained_adapters(tmp_path / "adapters")


def refusal(folder: Path, **settings: Any) -> str:
    """The line that refuses a folder before any model is loaded."""
    config = GRPOConfig(model="/no/model", adapter_path=str(folder), **settings)
    with pytest.raises(ConfigError) as caught:
        with_adapter_settings(config)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError) as again:
        load_policy(config, lambda message: None)
    assert str(again.value) == str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "theirs"),
    [
        ("lora_rank", 16, "lora_rank=4"),
        ("lora_scale", 2.0, "lora_scale=7.5"),
        ("lora_layers", 2, "lora_layers=1"),
        ("lora_keys", ["mlp.up_proj"], "lora_keys=['mlp.up_proj', 'self_attn.q_proj']"),
    ],
)
def test_a_setting_that_is_not_the_adapters_is_refused(
    adapters: Path, key: str, value: Any, theirs: str
) -> None:
    assert refusal(adapters, **{key: value}) == (
        f"{key}={value!r}: adapter_path={str(adapters)!r} was made with {theirs}; leave {key} out"
    )


def test_another_kind_and_keys_where_there_are_none_are_refused(tmp_path: Path) -> None:
    folder = of_mlx_lm(tmp_path / "theirs")
    assert "was made with fine_tune_type='lora'; leave" in refusal(folder, fine_tune_type="dora")
    assert "was made with no lora_keys; leave" in refusal(folder, lora_keys=["mlp.up_proj"])


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no folder": (shutil.rmtree, "no such folder; check the path"),
    "no config": (
        lambda folder: (folder / CONFIG).unlink(),
        "has no adapter_config.json; name an mlx-lm adapter folder",
    ),
    "a whole model": (
        lambda folder: (folder / CONFIG).rename(folder / "config.json"),
        "has no adapter_config.json; a whole model is named by model",
    ),
    "no weights": (
        lambda folder: (folder / WEIGHTS).unlink(),
        "has no adapters.safetensors; copy it there",
    ),
    "no JSON": (lambda f: (f / CONFIG).write_text("{"), "adapter_config.json cannot be read: "),
    "a list": (lambda f: (f / CONFIG).write_text("[]"), "adapter_config.json cannot be read: "),
    "no text": (lambda f: (f / CONFIG).write_bytes(b"\xff"), "cannot be read: "),
    "full": (changed(fine_tune_type="full"), "holds whole weights (fine_tune_type=full); merge"),
    "other kind": (changed(fine_tune_type="ia3"), "cannot be read: Invalid enum value 'ia3'"),
    "no layers": (changed(num_layers=None), "has no num_layers; add it"),
    "no parameters": (changed(lora_parameters=None), "has no lora_parameters; add it"),
    "no scale": (parameter(scale=None), "missing required field `scale`"),
    "negative scale": (parameter(scale=-1.0), "> 0.0 - at `$.lora_parameters.scale`"),
    "no rank": (parameter(rank=0), ">= 1 - at `$.lora_parameters.rank`"),
    "no keys": (parameter(keys=[]), "- at `$.lora_parameters.keys`"),
    "other rank": (parameter(rank=3), "which is not of rank 3 as in adapter_config.json"),
    "PEFT config": (changed(peft_type="LORA"), "is a PEFT folder; convert it to mlx-lm's form"),
    "PEFT weights": (
        lambda folder: (folder / WEIGHTS).rename(folder / "adapter_model.safetensors"),
        "is a PEFT folder; convert it to mlx-lm's form",
    ),
    "cut": (
        lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:900]),
        "adapters.safetensors cannot be read: ",
    ),
    "empty": (lambda folder: write_tensors(folder / WEIGHTS, {}), "holds no tensors"),
    "NaN": (poison(float("nan")), "up_proj.lora_a holds NaN or infinite numbers; start from"),
    "infinite": (poison(float("-inf")), "up_proj.lora_a holds NaN or infinite numbers; start"),
    "whole weight": (
        tensor(lambda tensors, name: tensors.update({"model.norm.weight": mx.ones(8)})),
        "tensor model.norm.weight is no adapter of mlx-lm",
    ),
    "integers": (
        tensor(lambda tensors, name: tensors.update({name: tensors[name].astype(mx.int32)})),
        "holds no floating-point numbers; save it again",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_folder_that_is_no_good_is_refused_before_the_model_is_loaded(
    adapters: Path, what: str
) -> None:
    damage, reason = DAMAGES[what]
    damage(adapters)
    message = refusal(adapters)
    assert message.startswith(f"adapter_path={str(adapters)!r}: ")
    assert reason in message


OTHERS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "one missing": (
        tensor(lambda tensors, name: tensors.pop(name)),
        "tensor model.layers.1.mlp.up_proj.lora_a is missing",
    ),
    "one more": (
        tensor(lambda tensors, name: tensors.update({"model.x.lora_a": tensors[name]})),
        "tensor model.x.lora_a fits nothing in the model",
    ),
    "other shape": (
        tensor(lambda tensors, name: tensors.update({name: tensors[name][:-1]})),
        "tensor model.layers.1.mlp.up_proj.lora_a has the shape (63, 4) where the model needs",
    ),
    "sizes of DoRA left out": (
        changed(fine_tune_type="lora"),
        "tensor model.layers.1.mlp.up_proj.m fits nothing in the model",
    ),
    "more layers": (
        changed(num_layers=2),
        "tensor model.layers.0.mlp.up_proj.lora_a is missing",
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_E01_adapters_of_another_model_are_refused(adapters: Path, what: str) -> None:
    """mlx-lm takes a file in which some tensors are missing."""
    damage, reason = OTHERS[what]
    damage(adapters)
    with pytest.raises(ModelError) as caught:
        load_policy(config_of(adapter_path=str(adapters)), lambda message: None)
    message = str(caught.value)
    assert message.startswith(f"adapter_path={str(adapters)!r}: {reason}")
    assert message.endswith("; name the adapters of this model")


def test_without_keys_a_tensor_may_not_be_missing_either(tmp_path: Path) -> None:
    folder = of_mlx_lm(tmp_path / "theirs")
    tensor(lambda tensors, name: tensors.pop(name))(folder)
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.down_proj\.lora_a is missing"):
        load_policy(config_of(adapter_path=str(folder)), lambda message: None)


def test_the_settings_are_checked_like_all_others(adapters: Path) -> None:
    config = msgspec.structs.replace(config_of(adapter_path=str(adapters)), lora_dropout=1.5)
    with pytest.raises(ConfigError, match="lora_dropout"):
        with_adapter_settings(config)


def test_adapters_of_another_architecture_are_refused_under_the_key_that_was_set(
    adapters: Path, tmp_path: Path
) -> None:
    model = make_architecture_folder(tmp_path / "other", "gpt_neox")
    config = config_of(model, adapter_path=str(adapters))
    with pytest.raises(ModelError) as caught:
        load_policy(config, lambda message: None)
    start = f"adapter_path={str(adapters)!r}: the adapters are of another model: "
    assert str(caught.value).startswith(start)
