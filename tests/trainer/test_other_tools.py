"""What is saved means the same to mlx-lm's own commands, each in a process of its own."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import pytest

from checkpoints import state_of
from grpo_protocol import GRPOConfig
from grpo_trainer.checkpoint import save_checkpoint
from grpo_trainer.learner import Learner
from grpo_trainer.policy import load_policy
from grpo_trainer.rollout import SamplingOptions, decode_greedily
from grpo_trainer.tensor_file import read_tensors
from grpo_trainer.training_rows import TrainingRow
from learners import EOS, are_identical, config_of, copy_of, logprobs_of
from mlx_lm_commands import IDS, QUESTION, mlx_lm_logits, mlx_lm_says, mlx_lm_serves, run
from tiny_model import tiny_model, tiny_quantized

STEPS = 20
KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "dora": {"fine_tune_type": "dora", "lora_rank": 4, "lora_scale": 10.0, "lora_layers": 1},
    "qlora": {"lora_keys": ["self_attn.q_proj", "mlp.down_proj", "model.embed_tokens"]},
    "qdora": {"fine_tune_type": "dora"},
    "experts": {},
}
FULL: dict[str, Any] = {"fine_tune_type": "full"}


def base_of(name: str) -> Path:
    if name == "experts":
        return tiny_model("qwen3_moe")
    return tiny_quantized() if name.startswith("q") else tiny_model()


def rows_of(learner: Learner) -> list[TrainingRow]:
    """Of each pair of completions the first is the better one."""
    tokenizer = learner.policy.source.tokenizer
    message = [{"role": "user", "content": QUESTION}]
    prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True)

    def row(text: str, advantage: float) -> TrainingRow:
        return TrainingRow(prompt, [*tokenizer.encode(text), EOS], advantage)

    return [row("Yes 42", 1.0), row("No", -0.2), row("Yes 42", 1.0), row("???", -0.2)]


@cache
def trained(name: str) -> tuple[Learner, GRPOConfig]:
    """A learner after some big steps; shared."""
    settings = KINDS.get(name, FULL)
    config = config_of(base_of(name), **settings, learning_rate=1e-2 if name in KINDS else 1e-3)
    learner = Learner(load_policy(config, lambda message: None), config)
    for step in range(1, STEPS + 1):
        assert learner.update([rows_of(learner)], config, step).applied
    return learner, config


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def answer(learner: Learner) -> str:
    """Our own greedy answer."""
    tokenizer = learner.policy.source.tokenizer
    options = SamplingOptions.of(config_of(max_completion_length=8), tokenizer)
    (found,) = decode_greedily(learner.policy.model, [rows_of(learner)[0].prompt_ids], options)
    text: str = tokenizer.decode([token for token in found.token_ids if token != EOS])
    return text.strip()


def gap(first: mx.array, second: mx.array) -> float:
    """The largest difference of two logits."""
    return float(mx.abs(first - second).max().item())  # type: ignore[arg-type]


def save(folder: Path, learner: Learner) -> Path:
    save_checkpoint(folder, learner, state_of(learner, STEPS))
    return folder


# --- adapters


def test_E02_mlx_lm_generates_with_the_trained_adapters(tmp_path: Path, kind: str) -> None:
    learner, _ = trained(kind)
    saved = save(tmp_path / "checkpoint", learner)
    expected = answer(learner)
    assert expected.isprintable()
    assert expected
    assert mlx_lm_says(base_of(kind), "--adapter-path", saved) == expected
    plain = Learner(load_policy(config_of(base_of(kind)), lambda message: None), config_of())
    assert answer(plain) != expected


def test_E02_a_fresh_load_and_a_fused_model_have_the_logits_of_the_trainer(
    tmp_path: Path, kind: str
) -> None:
    learner, _ = trained(kind)
    base, saved, fused = base_of(kind), save(tmp_path / "checkpoint", learner), tmp_path / "fused"
    adapters = ("--model", base, "--adapter-path", saved)
    run("-m", "mlx_lm", "fuse", *adapters, "--save-path", fused, "--dequantize")
    found = mlx_lm_logits(tmp_path, base=(base, None), loaded=(base, saved), fused=(fused, None))
    ours = learner.policy.model(mx.array(IDS))
    assert gap(found["loaded"], ours) < 1e-3
    assert gap(found["fused"], ours) < 1e-3
    assert gap(found["base"], ours) > 1.0


def test_E02_a_fused_model_that_stays_quantized_is_near(tmp_path: Path) -> None:
    """Its weights are rounded once more: that costs more than 1e-3, and far less than training."""
    learner, _ = trained("qlora")
    base, saved, fused = tiny_quantized(), save(tmp_path / "checkpoint", learner), tmp_path / "q"
    run("-m", "mlx_lm", "fuse", "--model", base, "--adapter-path", saved, "--save-path", fused)
    assert json.loads((fused / "config.json").read_text())["quantization"]["bits"] == 4
    found = mlx_lm_logits(tmp_path, base=(base, None), fused=(fused, None))
    ours = learner.policy.model(mx.array(IDS))
    assert 1e-3 < gap(found["fused"], ours) < 0.5 * gap(found["base"], ours)


def test_E02_the_server_of_mlx_lm_answers_with_the_trained_adapters(tmp_path: Path) -> None:
    learner, _ = trained("lora")
    saved = save(tmp_path / "checkpoint", learner)
    found = mlx_lm_serves(tiny_model(), "--adapter-path", saved)
    assert found == answer(learner)


def test_E02_the_adapter_config_says_what_was_trained(tmp_path: Path) -> None:
    learner, _ = trained("dora")
    saved = save(tmp_path / "checkpoint", learner)
    assert json.loads((saved / "adapter_config.json").read_text()) == {
        "fine_tune_type": "dora",
        "model": str(tiny_model()),
        "num_layers": 1,
        "lora_parameters": {
            "rank": 4,
            "scale": 10.0,
            "dropout": 0.0,
            "keys": [
                *(f"mlp.{name}_proj" for name in ("down", "gate", "up")),
                *(f"self_attn.{name}_proj" for name in "koqv"),
            ],
        },
    }
    assert are_identical(
        read_tensors(saved / "adapters.safetensors"), copy_of(learner.policy.weights)
    )


def test_training_goes_on_from_what_mlx_lm_trained(tmp_path: Path) -> None:
    row = json.dumps({"prompt": QUESTION, "completion": "Yes 42"})
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text(f"{row}\n" * 4)
    theirs = tmp_path / "theirs"
    run(
        *("-m", "mlx_lm", "lora", "--train", "--model", tiny_model(), "--data", tmp_path),
        *("--adapter-path", theirs, "--num-layers", "2", "--iters", "2", "--batch-size", "2"),
        *("--learning-rate", "1e-3", "--val-batches", "1"),
        MLX_DISABLE_COMPILE="1",  # kernels for two steps would take most of a minute on a CPU
    )
    written = json.loads((theirs / "adapter_config.json").read_text())
    assert "keys" not in written["lora_parameters"]
    config = config_of(adapter_path=str(theirs), learning_rate=1e-3)
    learner = Learner(load_policy(config, lambda message: None), config)
    assert are_identical(
        copy_of(learner.policy.weights), read_tensors(theirs / "adapters.safetensors")
    )
    loaded: Any = mlx_lm.load(str(tiny_model()), adapter_path=str(theirs))
    assert gap(loaded[0](mx.array(IDS)), learner.policy.model(mx.array(IDS))) < 1e-5
    assert learner.update([rows_of(learner)], config, 1).applied


# --- whole models


def test_E08_a_full_checkpoint_is_a_model_for_mlx_lm(tmp_path: Path) -> None:
    learner, _ = trained("full")
    saved = save(tmp_path / "checkpoint", learner)
    found = mlx_lm_logits(tmp_path, base=(tiny_model(), None), saved=(saved, None))
    ours = learner.policy.model(mx.array(IDS))
    assert gap(found["saved"], ours) < 1e-3
    assert gap(found["base"], ours) > 1.0
    expected = answer(learner)
    assert expected.isprintable()
    assert mlx_lm_says(saved) == expected


# --- the weights of the moment


@pytest.mark.parametrize("name", ["lora", "dora", "full"])
def test_M12_each_step_uses_the_weights_of_the_step_before(tmp_path: Path, name: str) -> None:
    """What the trainer computes after a step is what a newly loaded model computes."""
    config = config_of(tiny_model(), **KINDS.get(name, FULL), learning_rate=1e-2)
    learner = Learner(load_policy(config, lambda message: None), config)
    rows, answers, seen = rows_of(learner), [answer(learner)], []
    for step in range(1, 6):
        assert learner.update([rows], config, step).applied
        saved = save(tmp_path / f"checkpoint-{step}", learner)
        fresh: Any = (
            mlx_lm.load(str(saved))
            if name == "full"
            else mlx_lm.load(str(tiny_model()), adapter_path=str(saved))
        )
        ours = logprobs_of(learner, rows, config)
        learner.policy.model, live = fresh[0], learner.policy.model
        theirs = logprobs_of(learner, rows, config)
        learner.policy.model = live
        assert (
            max(
                abs(a - b)
                for x, y in zip(ours, theirs, strict=True)
                for a, b in zip(x, y, strict=True)
            )
            < 1e-4
        )
        assert ours not in seen
        seen.append(ours)
        answers.append(answer(learner))
        if name != "full" and step == 1:
            moved = [w for n, w in copy_of(learner.policy.weights).items() if n.endswith("lora_b")]
            assert moved
            assert all(mx.any(weight != 0).item() for weight in moved)
    assert len(set(answers)) > 1
