"""Whether a run will fit is said before its first step, and is about right."""

import dataclasses
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest

from grpo_protocol import GRPOConfig, load_config
from grpo_protocol.messages import Log, Step
from grpo_trainer import machine_memory, row_chunks
from grpo_trainer.learner import Learner
from grpo_trainer.memory_estimate import RunSizes, estimate_memory
from grpo_trainer.memory_note import memory_note
from grpo_trainer.model_shape import ModelShape, activation_size
from grpo_trainer.policy import Policy
from grpo_trainer.training_rows import TrainingRow
from learners import learner_by_position, make_learner
from library_runs import Library

GIB = 2**30
SHAPE = ModelShape(
    num_layers=32,
    hidden_size=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocabulary=128_256,
)
SIZES = RunSizes(
    shape=SHAPE,
    weights=16 * GIB,
    trainable=20_000_000,
    separate_masters=False,
    optimizer_state=160_000_000,
    number=2,
    prompt=1024,
    rows=64,
)
CONFIG = GRPOConfig(batch_size=8, group_size=8, max_completion_length=1024)
PROMPT, COMPLETION, ROWS = 100, 100, 8


def wide_learner(config: GRPOConfig) -> Learner:
    """Wide enough that arrays, and not bookkeeping, take the memory."""
    from mlx_lm.models import llama
    from mlx_lm.tuner.utils import linear_to_lora_layers

    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 4000}
    model = llama.Model(
        llama.ModelArgs.from_dict({"model_type": "llama", "rms_norm_eps": 1e-6, **sizes, **heads})
    )
    mx.eval(model.parameters())
    if config.fine_tune_type == "lora":
        model.freeze()
        linear_to_lora_layers(model, 4, {"rank": 8, "scale": 20.0, "dropout": 0.0})
    weights = model.trainable_parameters()
    policy = Policy(model, None, config.fine_tune_type, None, weights)  # type: ignore[arg-type]
    policy.adopt(policy.weights)
    return Learner(policy, config)


def rows() -> list[TrainingRow]:
    return [
        TrainingRow(
            [(7 * place + row) % 4000 for place in range(PROMPT)],
            [(11 * place + row) % 4000 for place in range(COMPLETION)],
            advantage=(-1.0) ** row,
        )
        for row in range(ROWS)
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_checkpointing": True},
        {"forward_chunk_size": 2},
        {"fine_tune_type": "full"},
        {"fine_tune_type": "full", "optimizer_type": "sgd", "learning_rate": 1e-3},
    ],
    ids=["lora", "checkpoints", "two rows", "full", "full with sgd"],
)
def test_the_estimate_is_within_a_third_of_what_a_step_takes(settings: dict[str, Any]) -> None:
    config = load_config(
        {"batch_size": 1, "group_size": ROWS, "max_completion_length": COMPLETION, **settings}
    )
    learner = wide_learner(config)
    sizes = RunSizes.of(learner, PROMPT, ROWS)
    assert sizes is not None
    estimate = estimate_memory(sizes, config)
    learner.update([rows()], config, 1)  # the first step makes the moments
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    learner.update([rows()], config, 2)
    others = before - estimate.weights - estimate.training_state
    measured = mx.get_peak_memory() - others  # other tests of the process may hold arrays
    assert estimate.weights + estimate.training_state + estimate.training == pytest.approx(
        measured, rel=1 / 3
    )


@pytest.mark.parametrize(
    ("share", "verdict", "level"),
    [(0.69, "fits", "info"), (0.71, "tight", "warn"), (0.86, "will not fit", "warn")],
)
def test_the_verdict_depends_on_the_share_of_the_memory(
    share: float, verdict: str, level: str
) -> None:
    peak = estimate_memory(SIZES, CONFIG).peak
    found, line = memory_note(SIZES, CONFIG, int(peak / share))
    assert found == level
    assert re.search(rf": {verdict}(;|$)", line)


def test_every_remedy_saves_what_it_says() -> None:
    peak = estimate_memory(SIZES, CONFIG).peak
    _, line = memory_note(SIZES, CONFIG, peak)
    found = re.findall(r"((?:\w+=\w+ )+)\(saves ([\d.]+) GB: (fits|tight|will not fit)\)", line)
    assert found
    for words, saved, verdict in found:
        changed = load_config(
            {"batch_size": 8, "group_size": 8, "max_completion_length": 1024},
            dict(word.split("=") for word in words.split()),
        )
        difference = peak - estimate_memory(SIZES, changed).peak
        assert difference / 1e9 == pytest.approx(float(saved), abs=0.51)
        assert verdict in memory_note(SIZES, changed, peak)[1]
    singles = [words.split() for words, _, _ in found if len(words.split()) == 1]
    assert ["gradient_checkpointing=true"] in singles


def test_rollouts_that_take_most_are_helped_by_decoding_fewer_together() -> None:
    many = dataclasses.replace(SIZES, rows=4096)
    _, line = memory_note(many, CONFIG, 32 * GIB)
    assert "generation_chunk_size=8" in line
    chunked = estimate_memory(many, load_config({"generation_chunk_size": 8}))
    assert chunked.rollouts * 256 < estimate_memory(many, CONFIG).rollouts


def test_full_fine_tuning_that_does_not_fit_is_told_of_adapters() -> None:
    full = dataclasses.replace(SIZES, trainable=8 * 10**9, optimizer_state=64 * 10**9)
    config = load_config({"fine_tune_type": "full", "adamw_beta1": 0.8})
    level, line = memory_note(full, config, 80 * GIB)
    assert level == "warn"
    assert "fine_tune_type=lora" in line
    assert "optimizer_type=adafactor" in line


def test_when_the_weights_alone_are_too_large_a_smaller_model_is_named() -> None:
    _, line = memory_note(SIZES, load_config({}), 8 * GIB)
    assert "a smaller or a quantized model" in line


def test_a_run_says_it_before_its_first_step(tmp_path: Path) -> None:
    library = Library(tmp_path / "run", lambda completions, **_: [0.0] * len(completions))
    library.train()
    kinds = [
        "memory" if isinstance(event, Log) and event.message.startswith("memory: ") else "step"
        for event in library.events
        if isinstance(event, Step) or (isinstance(event, Log) and "memory" in event.message)
    ]
    assert kinds[0] == "memory"
    assert kinds.count("memory") == 1


def test_a_model_that_does_not_tell_its_sizes_has_no_estimate() -> None:
    assert RunSizes.of(learner_by_position(GRPOConfig()), 3, 4) is None
    assert RunSizes.of(make_learner(), 3, 4) is not None


def test_the_state_that_a_gated_delta_layer_keeps_for_each_token_counts() -> None:
    plain = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    state = {
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    }
    without, with_state = ModelShape.of(plain), ModelShape.of({**plain, **state})
    assert without is not None
    assert with_state is not None
    grown = with_state.activations(100) - without.activations(100)
    assert grown > 2 * 100 * 4 * 32 * 32  # layers, tokens, heads, one state


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"n_layer": 12, "n_embd": 768, "n_head": 12}, (12, 768, 12, 3072)),
        (
            {"text_config": {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}},
            (2, 64, 4, 256),
        ),
        (
            {
                "num_hidden_layers": 2,
                "hidden_size": 64,
                "num_attention_heads": 4,
                "intermediate_size": 100,
                "moe_intermediate_size": 48,
                "num_experts_per_tok": 8,
            },
            (2, 64, 4, 384),
        ),
    ],
    ids=["gpt2", "nested", "experts"],
)
def test_sizes_are_found_under_the_names_of_each_architecture(
    settings: dict[str, Any], expected: tuple[int, ...]
) -> None:
    shape = ModelShape.of(settings)
    assert shape is not None
    found = (shape.num_layers, shape.hidden_size, shape.num_heads, shape.intermediate_size)
    assert found == expected
    assert ModelShape.of({}) is None


@pytest.mark.parametrize(
    ("dtype", "settings", "size"),
    [
        ("bfloat16", {}, 2),
        ("bfloat16", {"lora_rank": 64}, 2),
        ("bfloat16", {"fine_tune_type": "full"}, 2),
        ("float32", {"fine_tune_type": "full"}, 4),
    ],
)
def test_activations_have_the_precision_of_the_model_and_not_of_its_adapters(
    dtype: str, settings: dict[str, Any], size: int
) -> None:
    learner = make_learner(dtype=dtype, **settings)
    assert activation_size(learner.policy.model) == size


@pytest.mark.parametrize(
    "info",
    [
        {"total_memory": 150, "free_memory": 20},  # as CUDA tells it
        {"memory_size": 190, "max_recommended_working_set_size": 150},  # as Metal does
    ],
)
def test_the_memory_of_a_gpu_is_what_it_has_and_not_what_is_free(info: dict[str, int]) -> None:
    with (
        patch.object(mx, "default_device", lambda: "gpu"),
        patch.object(mx, "device_info", lambda device: info),
    ):
        assert machine_memory.machine_memory() == 150
        assert row_chunks.activation_bytes() == 150 // 8


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    with patch.object(machine_memory, "_CGROUP_LIMIT", limit):
        whole = machine_memory.machine_memory()
        limit.write_text("1000000\n")
        assert machine_memory.machine_memory() == 1_000_000
        limit.write_text("max\n")
        assert machine_memory.machine_memory() == pytest.approx(whole, rel=0.2)
