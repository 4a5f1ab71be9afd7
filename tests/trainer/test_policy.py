"""What is trained, in which precision, and what is refused."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_map
from mlx_lm.utils import load_model, quantize_model, save_model

from grpo_protocol import GRPOConfig
from grpo_trainer.errors import ModelError
from grpo_trainer.learner import Learner
from grpo_trainer.policy import Policy, load_policy
from grpo_trainer.trees import leaves
from learners import are_identical, config_of, copy_of, make_rows
from tiny_model import make_model, tiny_model


def load(config: GRPOConfig) -> Policy:
    return load_policy(config, lambda message: None)


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    folder = make_model(tmp_path / "quantized")
    model, config = load_model(folder)
    model, config = quantize_model(model, config, group_size=32, bits=4)
    save_model(folder, model)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


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
        "lora_parameters": {"rank": 3, "scale": 5.0, "dropout": 0.0},
    }


def test_the_seed_alone_decides_how_adapters_start() -> None:
    first = copy_of(load(config_of(seed=1)).weights)
    mx.random.seed(5)
    assert are_identical(copy_of(load(config_of(seed=1)).weights), first)
    assert not are_identical(copy_of(load(config_of(seed=2)).weights), first)


@pytest.mark.parametrize("kind", ["lora", "full"])
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


def test_E06_full_fine_tuning_of_a_quantized_model_is_refused(quantized: Path) -> None:
    with pytest.raises(ModelError, match=r"quantized weights.*use fine_tune_type=lora") as caught:
        load(config_of(quantized, fine_tune_type="full"))
    assert "\n" not in str(caught.value)


def test_adapters_of_a_quantized_model_learn(quantized: Path) -> None:
    config = config_of(quantized, learning_rate=1e-2)
    learner = Learner(load(config), config)
    before = copy_of(learner.policy.weights)
    assert learner.update([make_rows()], config, 1).applied
    assert not are_identical(copy_of(learner.policy.weights), before)
