"""What a checkpoint keeps of the objective, and how a damaged or foreign one is refused."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_map

from grpo_trainer.entropy_bonus import EntropyState
from grpo_trainer.errors import CheckpointError
from grpo_trainer.learner import Learner
from grpo_trainer.objective_state import (
    REFERENCE_NAME,
    ObjectiveState,
    restore,
    state_of,
    write,
)
from grpo_trainer.policy import load_policy
from grpo_trainer.tensor_file import read_tensors, write_tensors
from learners import config_of, make_learner
from tiny_model import make_model, tiny_model

KL: dict[str, Any] = {"kl_coef": 0.1}


def fingerprint(folder: Path, **settings: Any) -> str:
    config = config_of(folder, **KL, **settings)
    reference = Learner(load_policy(config, lambda message: None), config).reference
    assert reference is not None
    return reference.fingerprint


def altered(folder: Path, name: str) -> Path:
    """The tiny model with one tensor of another training."""
    make_model(folder)
    path = folder / "model.safetensors"
    tensors = {key: mx.array(array) for key, array in read_tensors(path).items()}
    tensors[name] = 1.001 * tensors[name]
    mx.eval(tensors)
    write_tensors(path, tensors)
    return folder


def shifted(tree: Any) -> Any:
    return tree_map(lambda array: array + 1, tree)


# --- the reference


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_the_same_start_has_the_same_fingerprint(tmp_path: Path, kind: str) -> None:
    copy = make_model(tmp_path / "copy")
    expected = fingerprint(tiny_model(), fine_tune_type=kind)
    assert fingerprint(copy, fine_tune_type=kind) == expected


@pytest.mark.parametrize("kind", ["lora", "full"])
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
        "model.norm.weight",
    ],
)
def test_W56_another_base_has_another_fingerprint(tmp_path: Path, kind: str, name: str) -> None:
    other = fingerprint(altered(tmp_path / "other", name), fine_tune_type=kind)
    assert other != fingerprint(tiny_model(), fine_tune_type=kind)


@pytest.mark.parametrize("settings", [{"seed": 1}, {"lora_rank": 4}, {"lora_layers": 1}], ids=str)
def test_other_adapters_have_another_fingerprint(settings: dict[str, Any]) -> None:
    assert fingerprint(tiny_model(), **settings) != fingerprint(tiny_model())


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_the_precision_in_which_a_bfloat16_file_is_loaded_does_not_matter(kind: str) -> None:
    """A run may go on where `dtype=auto` means another."""
    folder = tiny_model("qwen3", "bfloat16")
    wide, narrow = (
        fingerprint(folder, fine_tune_type=kind, dtype=dtype) for dtype in ("float32", "bfloat16")
    )
    assert wide == narrow


def test_training_does_not_change_the_fingerprint() -> None:
    learner = make_learner(**KL)
    assert learner.reference is not None
    before = learner.reference.fingerprint
    learner.policy.adopt(shifted(learner.policy.weights))
    learner.reference._fingerprint = None  # so that it is computed anew
    assert learner.reference.fingerprint == before


def test_a_moved_reference_is_written_and_another_file_is_refused(tmp_path: Path) -> None:
    learner = make_learner(**KL)
    assert learner.reference is not None
    write(tmp_path, learner)
    assert not list(tmp_path.iterdir())
    learner.reference.restore(shifted(learner.reference.weights))
    write(tmp_path, learner)
    state = state_of(learner, adaptive_entropy=False)
    restore(tmp_path, make_learner(**KL), state)
    path = tmp_path / REFERENCE_NAME
    write_tensors(path, {name: array + 1 for name, array in read_tensors(path).items()})
    with pytest.raises(CheckpointError, match="the KL reference is the model that"):
        restore(tmp_path, make_learner(**KL), state)


def test_without_a_KL_term_there_is_nothing_to_know_again(tmp_path: Path) -> None:
    assert state_of(make_learner(), adaptive_entropy=False) == ObjectiveState()
    known = state_of(make_learner(**KL), adaptive_entropy=False)
    assert known.reference is not None
    restore(tmp_path, make_learner(), known)
    restore(tmp_path, make_learner(**KL), ObjectiveState())


# --- the entropy bonus


def test_the_adaptive_bonus_goes_on_where_it_was(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"adaptive_entropy": True, "entropy_target": 1.0}
    learner, again = make_learner(**settings), make_learner(**settings)
    for entropy in (0.5, 0.25):
        learner.entropy_bonus.observe(entropy, config_of(**settings))
    state = state_of(learner, adaptive_entropy=True)
    assert state.entropy == EntropyState(pytest.approx(0.01), 0.25)  # type: ignore[arg-type]
    restore(tmp_path, again, state)
    config = config_of(**settings)
    assert again.entropy_bonus.weight(config) == learner.entropy_bonus.weight(config) > 0


def test_a_fixed_bonus_is_not_kept() -> None:
    learner = make_learner(entropy_coef=0.3)
    assert state_of(learner, adaptive_entropy=False).entropy is None
