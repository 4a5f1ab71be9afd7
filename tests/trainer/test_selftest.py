"""`grpo-trainer selftest` passes for what trains right."""

import re
from pathlib import Path
from typing import Any

import pytest

from adapter_folders import trained_adapters
from grpo_trainer.batch_probe import Decoding
from grpo_trainer.errors import ModelError
from grpo_trainer.selftest import bench
from selftests import BATCH, FROZEN, GRADIENT, LINES, MEMORY, MOVE, expect_all_ok, selftest
from tiny_model import VOCABULARY, make_model, tiny_model, tiny_quantized

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def restless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose completions have unlike lengths: every ninth token ends one."""
    return make_model(tmp_path_factory.mktemp("restless"), eos=list(range(0, VOCABULARY, 9)))


@pytest.mark.parametrize(
    "settings",
    [
        {"fine_tune_type": "full"},
        {"fine_tune_type": "dora"},
        {"optimizer_type": "muon", "fine_tune_type": "full"},
        {"optimizer_type": "adafactor"},
        {"optimizer_type": "sgd", "learning_rate": 1e-3},
        {"loss_type": "luspo", "gradient_checkpointing": "true", "forward_chunk_size": 3},
        {"loss_type": "dr_grpo", "top_p": 0.8, "num_iterations": 2, "kl_coef": 0.1},
        {"top_entropy_quantile": 0.3, "entropy_coef": 0.5, "repetition_penalty": 1.3},
        {"top_entropy_quantile": 0.3, "loss_type": "dapo"},
        {"lora_dropout": 0.5, "use_parallel_batch_generation": "false", "temperature": 2},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_sound_settings_pass(capsys: Capture, restless: Path, settings: dict[str, Any]) -> None:
    expect_all_ok(selftest(capsys, restless, **settings))


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_a_quantized_base_passes_and_stays(capsys: Capture, kind: str) -> None:
    report = selftest(capsys, tiny_quantized(), fine_tune_type=kind)
    expect_all_ok(report)
    assert report.found[FROZEN] == "all 54 tensors, bit for bit"


@pytest.mark.parametrize("kind", ["lora", "full"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_passes_by_its_own_bounds(capsys: Capture, kind: str, dtype: Any) -> None:
    report = selftest(capsys, tiny_model("qwen3", dtype), dtype=dtype, fine_tune_type=kind)
    expect_all_ok(report)
    assert f", {dtype}, adamw," in report.text


def test_the_first_gradient_of_lora_a_is_awaited_in_the_second_step(
    capsys: Capture,
) -> None:
    found = selftest(capsys).found[GRADIENT]
    assert found == "all 28 tensors, 14 of them from the second step on, as lora_b starts at 0"
    assert selftest(capsys, fine_tune_type="full").found[GRADIENT] == "all 24 tensors"


def test_trained_adapters_have_every_gradient_at_once(capsys: Capture, tmp_path: Path) -> None:
    report = selftest(capsys, adapter_path=trained_adapters(tmp_path / "adapters"))
    expect_all_ok(report)
    assert "second step" not in report.found[GRADIENT]


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_experts_without_a_token_are_listed(capsys: Capture, kind: str) -> None:
    report = selftest(capsys, tiny_model("qwen3_moe"), fine_tune_type=kind)
    expect_all_ok(report)
    assert re.search(
        r"; no token came to 2 of 8 experts: model\.layers\.1\.mlp\.switch_mlp 0 1$",
        report.found[GRADIENT],
    )


def test_a_learning_rate_that_would_not_show_in_float32_is_raised(
    capsys: Capture,
) -> None:
    for kind in ("full", "lora"):
        report = selftest(capsys, optimizer_type="sgd", learning_rate=1e-9, fine_tune_type=kind)
        expect_all_ok(report)
        assert "raised from 1e-09 to show in float32" in report.found[MOVE]
    assert "raised" not in selftest(capsys).found[MOVE]


def test_a_model_that_decodes_one_row_at_a_time_gets_a_warning(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Decoding("qwen3", "alone", "fails: no merge")
    monkeypatch.setattr(bench, "how_to_decode", lambda *_, **__: slow)
    report = selftest(capsys)
    assert report.code == 0
    assert report.verdicts == {**dict.fromkeys(LINES, "ok"), BATCH: "warning"}
    assert "decoded one at a time" in report.found[BATCH]
    assert "fails: no merge" in report.found[BATCH]


def test_a_model_without_checkpointing_is_compared_without(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: Any) -> None:
        raise ModelError("gradient_checkpointing=True: another gradient")

    monkeypatch.setattr("grpo_trainer.completion_scores.expect_equal_gradients", refuse)
    report = selftest(capsys)
    expect_all_ok(report)
    assert report.found[MEMORY].endswith("; gradient_checkpointing=True: another gradient")
