"""What is trained, in which precision, and what is refused."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_map
from mlx_lm.models import qwen3

from checkpoints import state_of
from grpo_protocol import GRPOConfig
from grpo_trainer.checkpoint import load_checkpoint, save_checkpoint
from grpo_trainer.errors import ModelError
from grpo_trainer.full_fine_tuning import unfreeze
from grpo_trainer.learner import Learner
from grpo_trainer.policy import Policy, load_policy
from grpo_trainer.tensor_file import read_tensors
from grpo_trainer.trees import leaves
from learners import are_identical, config_of, copy_of, make_rows
from tiny_model import make_model, tiny_model

SIZES = json.loads((tiny_model() / "config.json").read_text())


def load(config: GRPOConfig) -> Policy:
    return load_policy(config, lambda message: None)


def test_adapters_alone_are_trained_and_start_as_a_no_op() -> None:
    policy = load(config_of())
    names = [name for name, _ in leaves(policy.weights)]
    assert names
    assert all("lora_a" in name or "lora_b" in name for name in names)
    assert any("q_proj" in name for name in names)
    assert any("down_proj" in name for name in names)
    plain = load(config_of(fine_tune_type="full"))
    ids = mx.array([[1, 2, 3]])
    assert mx.allclose(policy.model(ids), plain.model(ids), atol=1e-6).item()
    assert policy.num_trainable == sum(
        w.size for _, w in leaves(policy.model.trainable_parameters())
    )
    assert plain.num_trainable == sum(w.size for _, w in leaves(plain.model.parameters()))


def test_rank_scale_and_layers_are_those_asked_for() -> None:
    policy = load(config_of(lora_rank=3, lora_scale=5.0, lora_layers=1))
    shapes = {name: w.shape for name, w in leaves(policy.weights)}
    assert all(3 in shape for shape in shapes.values())
    assert all(".layers.1." in name for name in shapes)
    assert policy.lora_parameters == {
        "num_layers": 1,
        "lora_parameters": {
            "rank": 3,
            "scale": 5.0,
            "dropout": 0.0,
            "keys": [
                *(f"mlp.{name}_proj" for name in ("down", "gate", "up")),
                *(f"self_attn.{name}_proj" for name in "koqv"),
            ],
        },
    }


def test_the_seed_alone_decides_how_adapters_start() -> None:
    first = copy_of(load(config_of(seed=1)).weights)
    mx.random.seed(5)
    assert are_identical(copy_of(load(config_of(seed=1)).weights), first)
    assert not are_identical(copy_of(load(config_of(seed=2)).weights), first)


@pytest.mark.parametrize("kind", ["lora", "dora", "full"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_trained_weights_are_float32_whatever_the_model(kind: str, dtype: str) -> None:
    policy = load(config_of(tiny_model("qwen3", "bfloat16"), dtype=dtype, fine_tune_type=kind))
    assert {w.dtype for _, w in leaves(policy.weights)} == {mx.float32}
    frozen = policy.model.model.embed_tokens.weight
    assert frozen.dtype == getattr(mx, dtype)
    assert policy.has_separate_masters == (kind == "full" and dtype != "float32")


def test_dtype_auto_is_float32_on_the_cpu() -> None:
    if mx.default_device() != mx.Device(mx.cpu):
        pytest.skip("this machine trains on a GPU, where auto keeps the file's precision")
    policy = load(config_of(tiny_model("qwen3", "bfloat16")))
    assert {w.dtype for _, w in leaves(policy.model.parameters())} == {mx.float32}
    assert not policy.has_separate_masters


def test_installed_weights_are_the_rounded_masters() -> None:
    config = config_of(tiny_model("qwen3", "bfloat16"), dtype="bfloat16", fine_tune_type="full")
    policy = load(config)
    policy.adopt(tree_map(lambda w: w * 1.001, policy.weights))
    installed = copy_of(policy.model.parameters())
    rounded = {name: w.astype(mx.bfloat16) for name, w in leaves(policy.weights)}
    assert are_identical(installed, rounded)


def test_a_coarser_type_leaves_out_what_the_architecture_keeps_fine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As mlx-lm's own conversion does; float32 is never too fine."""
    keeps = property(lambda model: lambda name: "norm" not in name)
    monkeypatch.setattr(qwen3.Model, "cast_predicate", keeps, raising=False)
    found = copy_of(load(config_of(dtype="bfloat16")).model.parameters())
    fine = {name for name, weight in found.items() if weight.dtype == mx.float32}
    assert fine == {name for name in found if "norm" in name or "lora_" in name}
    model = load(config_of(tiny_model("qwen3", "bfloat16"), dtype="float32")).model
    assert {weight.dtype for _, weight in leaves(model.parameters())} == {mx.float32}


# --- what is refused


def say_otherwise(folder: Path, **changes: Any) -> None:
    """Changes config.json, and leaves nothing that could be read as weights."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.pop("quantization", None)
    config.pop("quantization_config", None)
    path.write_text(json.dumps({**config, **changes}))
    (folder / "model.safetensors").write_bytes(b"none")


HOW = {"group_size": 32, "bits": 4}
SAID: list[tuple[dict[str, Any], str]] = [
    ({"quantization": HOW}, "quantization"),
    ({"quantization_config": {"quant_method": "mxfp4"}}, "quantization_config"),
    ({"text_config": {"quantization": HOW}}, "quantization"),
    ({"text_config": {"quantization_config": HOW}}, "quantization_config"),
]


@pytest.mark.parametrize(("changes", "key"), SAID)
def test_E06_full_fine_tuning_of_a_quantized_model_is_refused_before_its_weights_are_read(
    tmp_path: Path, changes: dict[str, Any], key: str
) -> None:
    folder = make_model(tmp_path / "model")
    say_otherwise(folder, **changes)
    with pytest.raises(ModelError) as caught:
        load(config_of(folder, fine_tune_type="full"))
    assert str(caught.value) == (
        f"fine_tune_type=full: model={str(folder)!r} is quantized (config.json has {key}), and "
        "quantized weights cannot be trained; use fine_tune_type=lora or dora, or name an "
        "unquantized model"
    )


def test_E06_a_quantization_that_a_file_of_its_own_describes_counts(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    say_otherwise(folder)
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    with pytest.raises(ModelError, match="is quantized"):
        load(config_of(folder, fine_tune_type="full"))


def test_E06_a_config_that_names_no_quantization_is_none(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", quantization=None, quantization_config={})
    assert load(config_of(folder, fine_tune_type="full")).num_trainable > 0


def test_E06_a_model_that_turns_out_to_be_quantized_is_refused() -> None:
    model = qwen3.Model(qwen3.ModelArgs.from_dict(SIZES))
    quantize(model, 32, 4)
    with pytest.raises(ModelError, match=r"model='m' is quantized \(model\..* is quantized\), and"):
        unfreeze(model, "m")
    model = qwen3.Model(qwen3.ModelArgs.from_dict(SIZES))
    model.model.norm.weight = model.model.norm.weight.astype(mx.uint8)
    with pytest.raises(ModelError, match=r"\(model\.norm\.weight is of type uint8\).*lora or dora"):
        unfreeze(model, "m")


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_a_model_that_quantizes_activations_is_refused(tmp_path: Path, kind: str) -> None:
    """In training mode mlx would give its layers other weights."""
    folder = make_model(tmp_path / "model")
    say_otherwise(folder, quantize_activations=True)
    with pytest.raises(ModelError, match="remove quantize_activations from its config"):
        load(config_of(folder, fine_tune_type=kind))


# --- what has no gradient


@pytest.mark.parametrize("name", ["e_score_correction_bias", "expert_bias", "router_bias"])
def test_a_bias_that_only_chooses_experts_is_not_trained(tmp_path: Path, name: str) -> None:
    """It has no gradient, and weight decay would move it; it is saved and resumed all the same."""
    config = config_of(fine_tune_type="full", learning_rate=1e-2, weight_decay=0.5)

    def learner() -> Learner:
        policy = load(config)
        policy.model.model.layers[1].mlp[name] = mx.ones(4)
        unfreeze(policy.model, "m")
        weights = policy.model.trainable_parameters()
        return Learner(Policy(policy.model, policy.source, "full", None, weights), config)

    first = learner()
    assert len(leaves(first.policy.weights)) + 1 == len(leaves(first.policy.model.parameters()))
    assert first.update([make_rows()], config, 1).applied
    assert mx.array_equal(first.policy.model.model.layers[1].mlp[name], mx.ones(4)).item()
    save_checkpoint(tmp_path / "c", first, state_of(first, 1))
    assert f"model.layers.1.mlp.{name}" in read_tensors(tmp_path / "c" / "model.safetensors")
    second = learner()
    load_checkpoint(tmp_path / "c", second)
    assert are_identical(copy_of(second.policy.weights), copy_of(first.policy.weights))


def test_a_weight_that_mlx_lm_would_change_when_it_loads_is_not_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """baichuan_m1's head is normalized on each loading, unless it is quantized."""

    def sanitize(model: Any, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        head = weights["model.norm.weight"]
        return {**weights, "model.norm.weight": head / mx.linalg.norm(head)}

    monkeypatch.setattr(qwen3.Model, "sanitize", sanitize)
    policy = load(config_of(fine_tune_type="full"))
    assert policy.notes == (
        "fine_tune_type=full: model.norm.weight stays as it is (mlx-lm would load it as something "
        "else than what was trained)",
    )
    every = {name for name, _ in leaves(policy.model.parameters())}
    assert every - {name for name, _ in leaves(policy.weights)} == {"model.norm.weight"}


def test_whole_models_are_trained_whole() -> None:
    policy = load(config_of(fine_tune_type="full"))
    assert policy.notes == ()
    assert policy.num_trainable == sum(w.size for _, w in leaves(policy.model.parameters()))


def test_a_model_that_never_set_itself_up_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """recurrent_gemma's does not call `Module.__init__`, without which nothing can be frozen."""
    init = qwen3.Model.__init__

    def forgetful(model: Any, args: Any) -> None:
        init(model, args)
        del model._no_grad

    monkeypatch.setattr(qwen3.Model, "__init__", forgetful)
    assert load(config_of()).num_trainable > 0
    assert load(config_of(fine_tune_type="full")).num_trainable > 0
