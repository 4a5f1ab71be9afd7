"""Checkpoints: what others can load, what survives a crash, and what is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import msgspec
import pytest

from grpo_trainer import checkpoint
from grpo_trainer.checkpoint import (
    DatasetState,
    TrainingState,
    find_latest,
    load_checkpoint,
    prune,
    read_state,
    save_checkpoint,
    steps_saved_by,
)
from grpo_trainer.errors import CheckpointError
from grpo_trainer.learner import Learner
from grpo_trainer.tensor_file import read_tensors, write_tensors
from learners import are_identical, config_of, copy_of, make_learner, make_rows
from tiny_model import tiny_model

KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "full": {"fine_tune_type": "full"},
    "full-bfloat16": {"fine_tune_type": "full", "dtype": "bfloat16"},
}


def state_of(learner: Learner, step: int, run_id: str = "run-1") -> TrainingState:
    return TrainingState(
        step=step,
        epoch=0,
        timestamp="2025-01-01T00:00:00+00:00",
        dataset=DatasetState(6, "abc"),
        has_optimizer_state=learner.updates > 0,
        run_id=run_id,
        seed=0,
        num_tokens=100,
    )


def trained(kind: str, steps: int = 2) -> Learner:
    learner = make_learner(**KINDS[kind], learning_rate=1e-3)
    for step in range(1, steps + 1):
        learner.update([make_rows()], settings(kind), step)
    return learner


def settings(kind: str) -> Any:
    return config_of(**KINDS[kind], learning_rate=1e-3)


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
    masters = read_tensors(tmp_path / "c" / checkpoint.MASTERS_NAME)
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


# --- whole or not at all


@pytest.mark.parametrize("at", ["weights", "optimizer", "manifest", "rename"])
@pytest.mark.parametrize("is_new", [True, False], ids=["new name", "same name"])
def test_W11_R11_a_failure_in_the_middle_leaves_the_older_one_alone(
    saved: Path, monkeypatch: pytest.MonkeyPatch, at: str, is_new: bool
) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    learner = trained("lora", steps=3)
    break_at(at, monkeypatch)
    target = saved.with_name("checkpoint-3") if is_new else saved
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(target, learner, state_of(learner, 3))
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert read_state(saved).step == 2


def break_at(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    def fail_for_optimizer(path: Path, *args: Any, **options: Any) -> None:
        if path.name == checkpoint.OPTIMIZER_NAME:
            fail()
        write_tensors(path, *args, **options)

    match place:
        case "weights":
            monkeypatch.setattr(checkpoint, "write_tensors", fail)
        case "optimizer":
            monkeypatch.setattr(checkpoint, "write_tensors", fail_for_optimizer)
        case "manifest":
            monkeypatch.setattr(checkpoint, "_write_manifest", fail)
        case "rename":
            rename = Path.rename

            def fail_for_new(self: Path, target: Path) -> Path:
                if self.name.endswith(".tmp"):
                    fail()
                return rename(self, target)

            monkeypatch.setattr(Path, "rename", fail_for_new)


def test_a_name_that_exists_is_replaced(saved: Path) -> None:
    learner = trained("lora", steps=3)
    save_checkpoint(saved, learner, state_of(learner, 3))
    assert read_state(saved).step == 3
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


# --- what is refused


def cut(folder: Path) -> None:
    path = folder / "adapters.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(folder: Path) -> None:
    path = folder / "adapters.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def remove_optimizer(folder: Path) -> None:
    (folder / checkpoint.OPTIMIZER_NAME).unlink()


def remove_manifest(folder: Path) -> None:
    (folder / checkpoint.MANIFEST_NAME).unlink()


def break_manifest(folder: Path) -> None:
    (folder / checkpoint.MANIFEST_NAME).write_text("{")


def alter_state(folder: Path) -> None:
    path = folder / checkpoint.STATE_NAME
    path.write_text(path.read_text().replace('"step": 2', '"step": 9'))


@pytest.mark.parametrize(
    "damage",
    [cut, flip_a_bit, remove_optimizer, remove_manifest, break_manifest, alter_state],
)
def test_W11_a_checkpoint_that_is_not_whole_is_refused(
    saved: Path, damage: Callable[[Path], None]
) -> None:
    damage(saved)
    learner = make_learner()
    weights = copy_of(learner.policy.weights)
    with pytest.raises(CheckpointError, match="resume=") as caught:
        load_checkpoint(saved, learner)
    assert "\n" not in str(caught.value)
    assert are_identical(copy_of(learner.policy.weights), weights)
    assert find_latest(saved.parent) is None


def test_what_is_no_checkpoint_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder; check the path"):
        read_state(tmp_path / "checkpoint-7")
    with pytest.raises(CheckpointError, match="to start from it use --model"):
        read_state(tiny_model())


def test_R19_E01_adapters_of_another_shape_are_refused(saved: Path) -> None:
    learner = make_learner(lora_rank=4)
    weights = copy_of(learner.policy.weights)
    with pytest.raises(CheckpointError, match=r"tensor .* does not match the model; resume with"):
        load_checkpoint(saved, learner)
    assert are_identical(copy_of(learner.policy.weights), weights)


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
    (tmp_path / "c" / checkpoint.MASTERS_NAME).unlink()
    (tmp_path / "c" / checkpoint.MANIFEST_NAME).unlink()
    checkpoint._write_manifest(tmp_path / "c")
    with pytest.raises(CheckpointError, match="does not match the model"):
        load_checkpoint(tmp_path / "c", make_learner(**KINDS["full-bfloat16"]))


# --- which one


def save_state(folder: Path, step: int, run_id: str = "run-1") -> None:
    """A complete checkpoint, as far as choosing and removing go."""
    folder.mkdir()
    learner = type("NoUpdates", (), {"updates": 0})()
    checkpoint._write_json(folder / checkpoint.STATE_NAME, state_of(learner, step, run_id))
    checkpoint._write_manifest(folder)


def test_R13_the_latest_is_the_one_with_most_steps(tmp_path: Path) -> None:
    assert find_latest(tmp_path) is None
    for step in (9, 10, 100):
        save_state(tmp_path / f"checkpoint-{step}", step)
    assert find_latest(tmp_path) == tmp_path / "checkpoint-100"
    save_state(tmp_path / "final", 120)
    assert find_latest(tmp_path) == tmp_path / "final"
    save_state(tmp_path / "emergency-130", 130)
    assert find_latest(tmp_path) == tmp_path / "emergency-130"
    save_state(tmp_path / "debug-140", 140)
    (tmp_path / "checkpoint-150").mkdir()
    (tmp_path / ".checkpoint-160.tmp").mkdir()
    assert find_latest(tmp_path) == tmp_path / "emergency-130"


def test_choosing_hashes_no_more_than_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        save_state(tmp_path / f"checkpoint-{step}", step)
    remove_manifest(tmp_path / "checkpoint-3")
    hashed: set[str] = set()
    entry = checkpoint._entry

    def listen(path: Path) -> Any:
        hashed.add(path.parent.name)
        return entry(path)

    monkeypatch.setattr(checkpoint, "_entry", listen)
    assert find_latest(tmp_path) == tmp_path / "checkpoint-2"
    assert steps_saved_by(tmp_path, "run-1") == [1, 2, 3]
    assert hashed == {"checkpoint-2"}


def test_R11_a_crash_while_a_name_is_replaced_leaves_one_to_resume_from(tmp_path: Path) -> None:
    save_state(tmp_path / ".final.old", 8)
    assert find_latest(tmp_path) == tmp_path / ".final.old"
    save_state(tmp_path / "final", 8)
    assert find_latest(tmp_path) == tmp_path / "final"


def test_W12_retention_looks_at_the_run_s_own_history(tmp_path: Path) -> None:
    for step, run_id in ((2, "run-1"), (4, "run-1"), (6, "run-1"), (50, "older"), (60, "older")):
        save_state(tmp_path / f"checkpoint-{step}", step, run_id)
    saved_steps = steps_saved_by(tmp_path, "run-1")
    assert saved_steps == [2, 4, 6]
    removed = prune(tmp_path, 2, saved_steps)
    assert removed == [tmp_path / "checkpoint-2"]
    assert saved_steps == [4, 6]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"checkpoint-4", "checkpoint-6", "checkpoint-50", "checkpoint-60"}


def test_no_limit_keeps_all(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_state(tmp_path / f"checkpoint-{step}", step)
    assert prune(tmp_path, 0, [1, 2, 3]) == []
    assert len(list(tmp_path.iterdir())) == 3


def test_a_tensor_file_depends_on_its_tensors_alone(tmp_path: Path) -> None:
    tensors = {
        "b": mx.arange(6, dtype=mx.float32).reshape(2, 3),
        "a": mx.array([1.5, -2.25], dtype=mx.bfloat16),
        "c": mx.array(7, dtype=mx.uint64),
        "view": mx.arange(12).reshape(3, 4).T,
    }
    write_tensors(tmp_path / "one", tensors)
    write_tensors(tmp_path / "two", dict(reversed(tensors.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    shutil.move(tmp_path / "one", tmp_path / "one.safetensors")
    found = read_tensors(tmp_path / "one.safetensors")
    assert are_identical(found, tensors)
    assert {name: array.dtype for name, array in found.items()} == {
        name: array.dtype for name, array in tensors.items()
    }
