"""Checkpoints: what others can load, and what a learner gets back."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import msgspec
import pytest

from checkpoints import KINDS, settings, state_of, trained
from grpo_trainer import checkpoint
from grpo_trainer.checkpoint import load_checkpoint, save_checkpoint
from grpo_trainer.errors import CheckpointError
from grpo_trainer.learner import Learner
from grpo_trainer.policy import load_policy
from grpo_trainer.tensor_file import read_tensors, write_tensors
from grpo_trainer.weight_files import MASTERS_NAME
from learners import EOS, are_identical, config_of, copy_of, make_learner, make_rows
from tiny_model import make_model, tiny_model, tiny_quantized


def logits(model: Any) -> mx.array:
    result: mx.array = model(mx.array([[1, 2, 3, 4]]))
    return result


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of adapters after two steps."""
    learner = trained("lora")
    save_checkpoint(tmp_path / "checkpoint-2", learner, state_of(learner, 2))
    return tmp_path / "checkpoint-2"


# --- for other programs


def test_adapters_are_an_mlx_lm_adapter_folder(saved: Path) -> None:
    learner = trained("lora")
    loaded: Any = mlx_lm.load(str(tiny_model()), adapter_path=str(saved))
    assert mx.allclose(logits(loaded[0]), logits(learner.policy.model), atol=1e-5).item()
    plain: Any = mlx_lm.load(str(tiny_model()))
    assert not mx.allclose(logits(plain[0]), logits(learner.policy.model), atol=1e-3).item()


@pytest.mark.parametrize("kind", ["full", "full-bfloat16"])
def test_E08_full_weights_are_a_whole_mlx_lm_model(tmp_path: Path, kind: str) -> None:
    learner = trained(kind)
    save_checkpoint(tmp_path / "final", learner, state_of(learner, 2))
    loaded: Any = mlx_lm.load(str(tmp_path / "final"))
    model, tokenizer = loaded
    assert mx.array_equal(logits(model), logits(learner.policy.model)).item()
    assert tokenizer.decode(tokenizer.encode("1 + 2")) == "1 + 2"
    assert tokenizer.chat_template is not None
    names = set(read_tensors(tmp_path / "final" / "model.safetensors"))
    assert names == set(read_tensors(tiny_model() / "model.safetensors"))
    assert "lm_head.weight" not in names


def test_E08_a_tied_model_stays_tied_and_as_small(tmp_path: Path) -> None:
    learner = trained("full", steps=5)
    save_checkpoint(tmp_path / "final", learner, state_of(learner, 5))
    sizes = [
        (folder / "model.safetensors").stat().st_size
        for folder in (tmp_path / "final", tiny_model())
    ]
    assert sizes[0] <= sizes[1] + 100  # the metadata that transformers looks for
    loaded: Any = mlx_lm.load(str(tmp_path / "final"))
    assert loaded[0].args.tie_word_embeddings is True
    assert "lm_head" not in loaded[0]
    assert mx.array_equal(logits(loaded[0]), logits(learner.policy.model)).item()


def test_E08_the_config_is_that_of_the_base_model(tmp_path: Path) -> None:
    """Infinity, as transformers writes it, is no number of JSON; the path is of another machine."""
    told = {
        "_name_or_path": "/home/someone/model",
        "time_step_limit": [0.0, {"__float__": "Infinity"}],
        "torch_dtype": "float32",
        "transformers_version": "4.51.0",
    }
    base = make_model(tmp_path / "base", "qwen3", "float32", eos=[1, EOS], **told)
    before = json.loads((base / "config.json").read_text())
    config = config_of(base, fine_tune_type="full", dtype="bfloat16")
    learner = Learner(load_policy(config, lambda message: None), config)
    save_checkpoint(tmp_path / "final", learner, state_of(learner, 1))
    saved = json.loads((tmp_path / "final" / "config.json").read_text())
    del before["_name_or_path"]
    assert saved == {**before, "torch_dtype": "bfloat16"}
    mlx_lm.load(str(tmp_path / "final"))


def test_a_model_of_several_files_is_saved_as_one(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base")
    tensors = read_tensors(base / "model.safetensors")
    (base / "model.safetensors").unlink()
    index: dict[str, str] = {}
    for number in (1, 2):
        name = f"model-{number:05}-of-00002.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[number - 1 :: 2]}
        write_tensors(base / name, part)
        index |= dict.fromkeys(part, name)
    (base / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    config = config_of(base, fine_tune_type="full")
    learner = Learner(load_policy(config, lambda message: None), config)
    assert are_identical(copy_of(learner.policy.weights), tensors)
    save_checkpoint(tmp_path / "final", learner, state_of(learner, 1))
    assert [path.name for path in (tmp_path / "final").glob("model*")] == ["model.safetensors"]
    assert are_identical(read_tensors(tmp_path / "final" / "model.safetensors"), tensors)


def test_W17_every_file_of_the_tokenizer_is_copied(saved: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (saved / name).read_bytes() == (tiny_model() / name).read_bytes()


def test_the_state_keeps_the_names_of_the_reference(saved: Path) -> None:
    found = msgspec.json.decode((saved / "training_state.json").read_bytes())
    assert found["step"] == 2
    assert found["hasOptimizerState"] is True
    assert found["dataset"] == {"size": 6, "contentHash": "abc"}
    assert {"epoch", "timestamp", "runId", "seed"} <= set(found)


# --- and back


@pytest.mark.parametrize(
    "settings", [{"fine_tune_type": "dora"}, {"lora_keys": ["model.embed_tokens"]}]
)
@pytest.mark.parametrize("folder", [tiny_model, tiny_quantized])
def test_adapters_of_every_kind_resume_bit_for_bit(
    tmp_path: Path, settings: dict[str, Any], folder: Any
) -> None:
    config = config_of(folder(), **settings, learning_rate=1e-3)
    first, second = (Learner(load_policy(config, lambda message: None), config) for _ in range(2))
    first.update([make_rows()], config, 1)
    save_checkpoint(tmp_path / "c", first, state_of(first, 1))
    load_checkpoint(tmp_path / "c", second)
    for learner in (first, second):
        learner.update([make_rows()], config, 2)
    assert are_identical(copy_of(first.policy.weights), copy_of(second.policy.weights))
    assert are_identical(
        copy_of(first.policy.model.parameters()), copy_of(second.policy.model.parameters())
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_learner_goes_on_bit_for_bit(tmp_path: Path, kind: str) -> None:
    learner, witness = trained(kind), trained(kind, steps=4)
    save_checkpoint(tmp_path / "checkpoint-2", learner, state_of(learner, 2))
    resumed = make_learner(**KINDS[kind], learning_rate=1e-3)
    state = load_checkpoint(tmp_path / "checkpoint-2", resumed)
    assert state == state_of(learner, 2)
    assert resumed.updates == 2
    assert are_identical(copy_of(resumed.policy.weights), copy_of(learner.policy.weights))
    for step in (3, 4):
        resumed.update([make_rows()], settings(kind), step)
    assert are_identical(copy_of(resumed.policy.weights), copy_of(witness.policy.weights))
    assert are_identical(
        copy_of(resumed.policy.model.parameters()), copy_of(witness.policy.model.parameters())
    )
    for name, each in (("a", resumed), ("b", witness)):
        save_checkpoint(tmp_path / name, each, state_of(each, 4))
    files = {path.name for path in (tmp_path / "a").iterdir()}
    assert files == {path.name for path in (tmp_path / "b").iterdir()}
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_masters_are_finer_than_the_weights_of_a_bfloat16_checkpoint(tmp_path: Path) -> None:
    learner = trained("full-bfloat16")
    save_checkpoint(tmp_path / "c", learner, state_of(learner, 2))
    masters = read_tensors(tmp_path / "c" / MASTERS_NAME)
    weights = read_tensors(tmp_path / "c" / "model.safetensors")
    assert {w.dtype for w in masters.values()} == {mx.float32}
    assert {w.dtype for w in weights.values()} == {mx.bfloat16}
    assert are_identical(masters, copy_of(learner.policy.weights))
    assert are_identical({n: w.astype(mx.bfloat16) for n, w in masters.items()}, weights)


def test_a_checkpoint_without_updates_has_no_optimizer_state(tmp_path: Path) -> None:
    learner = make_learner()
    save_checkpoint(tmp_path / "c", learner, state_of(learner, 1))
    assert not (tmp_path / "c" / checkpoint.OPTIMIZER_NAME).exists()
    assert not load_checkpoint(tmp_path / "c", make_learner()).has_optimizer_state


# --- what does not fit


def test_R19_E01_adapters_of_another_shape_are_refused(saved: Path) -> None:
    learner = make_learner(lora_rank=4)
    weights = copy_of(learner.policy.weights)
    with pytest.raises(CheckpointError, match=r"tensor .* does not match the model; resume with"):
        load_checkpoint(saved, learner)
    assert are_identical(copy_of(learner.policy.weights), weights)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_scale": 10.0}, "its adapters have scale=20.0, not 10.0; resume with the settings"),
        ({"fine_tune_type": "dora"}, "does not match the model; resume with the settings"),
        ({"lora_layers": 1}, "does not match the model; resume with the settings"),
        ({"lora_keys": ["mlp.up_proj"]}, "does not match the model; resume with the settings"),
    ],
)
def test_R19_adapters_of_other_settings_are_refused(
    saved: Path, settings: dict[str, Any], message: str
) -> None:
    """A scale is in no shape, and halves what the adapters do."""
    learner = make_learner(**settings)
    weights = copy_of(learner.policy.weights)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(saved, learner)
    assert message in str(caught.value)
    assert are_identical(copy_of(learner.policy.weights), weights)


def test_R19_another_dropout_resumes(saved: Path) -> None:
    assert load_checkpoint(saved, make_learner(lora_dropout=0.1)).step == 2


def test_R19_adapters_do_not_resume_a_full_fine_tuning(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no model\.safetensors, which fine_tune_type=full"):
        load_checkpoint(saved, make_learner(fine_tune_type="full"))


@pytest.mark.parametrize(("wrote", "reads"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_another_precision_resumes_from_the_same_masters(
    tmp_path: Path, wrote: str, reads: str
) -> None:
    learner = make_learner(fine_tune_type="full", dtype=wrote, learning_rate=1e-3)
    learner.update([make_rows()], config_of(learning_rate=1e-3, fine_tune_type="full"), 1)
    save_checkpoint(tmp_path / "c", learner, state_of(learner, 1))
    resumed = make_learner(fine_tune_type="full", dtype=reads)
    load_checkpoint(tmp_path / "c", resumed)
    assert are_identical(copy_of(resumed.policy.weights), copy_of(learner.policy.weights))
    assert {w.dtype for w in copy_of(resumed.policy.weights).values()} == {mx.float32}


def test_weights_of_a_coarser_type_are_never_taken_for_masters(tmp_path: Path) -> None:
    learner = trained("full-bfloat16")
    save_checkpoint(tmp_path / "c", learner, state_of(learner, 2))
    (tmp_path / "c" / MASTERS_NAME).unlink()
    (tmp_path / "c" / checkpoint.MANIFEST_NAME).unlink()
    checkpoint._write_manifest(tmp_path / "c")
    with pytest.raises(CheckpointError, match="does not match the model"):
        load_checkpoint(tmp_path / "c", make_learner(**KINDS["full-bfloat16"]))
