"""Which modules get adapters, that these learn, and what is refused."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.nn.layers.linear import Linear

from adapter_kinds import EXPERTS, KINDS, load
from grpo_trainer.adapters import add_adapters
from grpo_trainer.errors import ModelError
from grpo_trainer.policy import Policy
from grpo_trainer.trees import leaves
from learners import are_identical, config_of, copy_of
from tiny_model import make_model, tiny_model, tiny_quantized

ATTENTION = ["self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj"]
DENSE = ["mlp.down_proj", "mlp.gate_proj", "mlp.up_proj"]
LEAVES = {"lora": {"lora_a", "lora_b"}, "dora": {"lora_a", "lora_b", "m"}}


def keys_of(policy: Policy) -> list[str]:
    assert policy.lora_parameters is not None
    keys: list[str] = policy.lora_parameters["lora_parameters"]["keys"]
    return keys


def modules_of(policy: Policy) -> set[str]:
    """Paths of the modules that have trained tensors."""
    return {name.rpartition(".")[0] for name, _ in leaves(policy.weights)}


def refusal(folder: Path | None = None, **settings: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load(folder, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- which modules


@pytest.mark.parametrize("kind", KINDS)
def test_without_keys_every_linear_module_of_the_layers_gets_adapters(kind: str) -> None:
    policy = load(fine_tune_type=kind)
    assert keys_of(policy) == sorted(DENSE + ATTENTION)
    assert modules_of(policy) == {f"model.layers.{n}.{k}" for n in (0, 1) for k in keys_of(policy)}
    assert {name.rpartition(".")[2] for name, _ in leaves(policy.weights)} == LEAVES[kind]
    assert policy.notes == ()


def test_keys_name_modules_of_the_last_layers_or_of_the_model(tmp_path: Path) -> None:
    untied = make_model(tmp_path / "untied", tie_word_embeddings=False)
    keys = ["self_attn.v_proj", "lm_head", "self_attn.q_proj"]
    policy = load(untied, lora_layers=1, lora_keys=keys)
    inside = {f"model.layers.1.self_attn.{name}" for name in ("q_proj", "v_proj")}
    assert modules_of(policy) == {"lm_head", *inside}
    assert keys_of(policy) == ["lm_head", "self_attn.q_proj", "self_attn.v_proj"]


def test_experts_and_routers_get_adapters_as_in_mlx_lm() -> None:
    policy = load(tiny_model("qwen3_moe"))
    assert keys_of(policy) == sorted([*ATTENTION, *EXPERTS, "mlp.gate"])
    assert policy.notes == ()


def test_dora_leaves_experts_out_and_says_so() -> None:
    """mlx-lm has no DoRA for them."""
    policy = load(tiny_model("qwen3_moe"), fine_tune_type="dora")
    assert keys_of(policy) == sorted([*ATTENTION, "mlp.gate"])
    (note,) = policy.notes
    assert note.startswith("fine_tune_type=dora: no adapters for mlp.switch_mlp.down_proj (mlx-lm ")
    assert all(name in note for name in EXPERTS)


def test_dora_leaves_out_what_mlx_lm_computes_wrongly(tmp_path: Path) -> None:
    """mlx-lm takes 6-bit rows to be shorter than they are."""
    message = refusal(tiny_quantized(bits=6), fine_tune_type="dora")
    assert "mlp.down_proj (mlx-lm has no DoRA for weights of 6 bits)" in message
    assert refusal(
        tiny_quantized(bits=6), fine_tune_type="dora", lora_keys=["mlp.up_proj"]
    ).startswith("lora_keys='mlp.up_proj': mlx-lm has no DoRA for weights of 6 bits; leave it out")
    assert load(tiny_quantized(bits=6), fine_tune_type="lora").notes == ()


def test_the_same_keys_in_any_order_give_the_same_adapters() -> None:
    first = load(lora_keys=["mlp.up_proj", "self_attn.q_proj"])
    second = load(lora_keys=["self_attn.q_proj", "mlp.up_proj", "mlp.up_proj"])
    assert are_identical(copy_of(first.weights), copy_of(second.weights))
    assert keys_of(first) == keys_of(second)


# --- what is refused


def test_more_layers_than_the_model_has_are_refused() -> None:
    """mlx-lm would take all layers instead."""
    assert refusal(lora_layers=3) == (
        "lora_layers=3: the model has 2 layers; give a number from 1 to 2, or -1 for all"
    )


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("q_proj", "did you mean self_attn.q_proj"),
        ("self_attn.qproj", "did you mean self_attn.q_proj"),
        ("embed_tokens", "did you mean model.embed_tokens"),
        ("zzz", "no such module; there are mlp.down_proj, mlp.gate_proj"),
    ],
)
def test_an_unknown_key_is_refused_with_those_there_are(key: str, near: str) -> None:
    message = refusal(lora_keys=["self_attn.v_proj", key])
    assert message.startswith(f"lora_keys={key!r}: no such module; ")
    assert near in message
    assert all(name in message for name in [*ATTENTION, *DENSE, "model.embed_tokens"])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"lora_keys": ["self_attn"]}, "'self_attn': Attention takes no adapter"),
        ({"lora_keys": ["input_layernorm"]}, "'input_layernorm': RMSNorm takes no adapter"),
        (
            {"lora_keys": ["self_attn.q_proj", "model.layers.1.self_attn.q_proj"]},
            "'model.layers.1.self_attn.q_proj': names a module that 'self_attn.q_proj' names too",
        ),
    ],
)
def test_keys_that_cannot_have_adapters_are_refused(settings: Any, reason: str) -> None:
    assert refusal(**settings).startswith(f"lora_keys={reason}")


@pytest.mark.parametrize(
    ("folder", "key", "reason"),
    [
        (lambda: tiny_model("qwen3_moe"), EXPERTS[0], "mlx-lm has no DoRA for experts"),
        (tiny_quantized, "model.embed_tokens", "mlx-lm has no DoRA for quantized embeddings"),
    ],
)
def test_dora_where_mlx_lm_has_none_is_refused(folder: Any, key: str, reason: str) -> None:
    message = refusal(folder(), fine_tune_type="dora", lora_keys=[key])
    assert message == f"lora_keys={key!r}: {reason}; leave it out or use another kind"


class Reaching(nn.Module):  # type: ignore[misc, name-defined]
    """A layer that uses the weight of a module by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Linear(8, 8)

    def __call__(self, states: mx.array) -> mx.array:
        return states @ self.router.weight.T


class Hybrid(nn.Module):  # type: ignore[misc, name-defined]
    """Layers that differ, and a head that is reached for without being called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Module(), nn.Module()]  # type: ignore[attr-defined]
        self.layers[0].mixer = Linear(8, 8)
        self.layers[1].attention = Linear(8, 8)
        self.head = Linear(8, 8)

    def __call__(self, ids: mx.array) -> mx.array:
        states = self.layers[1].attention(self.layers[0].mixer(mx.ones((*ids.shape, 8))))
        for layer in self.layers[2:]:
            states = layer(states)
        return states @ self.head.weight.T  # type: ignore[no-any-return]


def test_layers_that_differ_get_the_adapters_that_each_can_have() -> None:
    model = Hybrid()
    adapters = add_adapters(model, config_of())
    assert adapters.parameters["lora_parameters"]["keys"] == ["attention", "mixer"]
    names = {name.rpartition(".")[0] for name, _ in leaves(model.trainable_parameters())}
    assert names == {"layers.0.mixer", "layers.1.attention"}


def test_a_key_of_other_layers_than_the_last_is_refused() -> None:
    """mlx-lm would train nothing."""
    with pytest.raises(ModelError, match="'mixer': the last 1 layers have none; raise lora_layers"):
        add_adapters(Hybrid(), config_of(lora_layers=1, lora_keys=["mixer"]))
    adapters = add_adapters(Hybrid(), config_of(lora_layers=1))
    assert adapters.parameters["lora_parameters"]["keys"] == ["attention"]


def test_a_module_that_the_model_does_not_call_is_refused_before_training() -> None:
    with pytest.raises(
        ModelError, match="'head': the model reaches for its weight instead of call"
    ):
        add_adapters(Hybrid(), config_of(lora_keys=["head"]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_of_the_layers_that_the_model_does_not_call_is_left_out(kind: str) -> None:
    model = Hybrid()
    model.layers.append(Reaching())
    adapters = add_adapters(model, config_of(fine_tune_type=kind))
    assert adapters.parameters["lora_parameters"]["keys"] == ["attention", "mixer"]
    (note,) = adapters.notes
    assert note.startswith(f"fine_tune_type={kind}: no adapters for router (the model reaches for")
    names = {name.rpartition(".")[0] for name, _ in leaves(model.trainable_parameters())}
    assert names == {"layers.0.mixer", "layers.1.attention"}
    assert isinstance(model.layers[2].router, Linear)
