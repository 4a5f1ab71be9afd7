"""A model that is wrong without a cache makes itself one; logits, gradients and files are right.

The architecture here gives the keys and values of some layers to others, through the cache alone.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_unflatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load as load_mlx_lm

from architectures import WINDOW, architecture, make_architecture, make_architecture_folder
from grpo_protocol import GRPOConfig
from grpo_trainer.batch_probe import how_to_decode
from grpo_trainer.errors import ModelError
from grpo_trainer.fresh_caches import make_fresh_caches
from grpo_trainer.learner import Learner
from grpo_trainer.policy import Policy
from grpo_trainer.split_forward import SplitForward
from grpo_trainer.trees import leaves, number
from learners import copy_of, largest, largest_difference
from library_runs import Library

NAME = "gemma3n"
IDS = mx.array([[(7 * place + start) % 128 for place in range(3 * WINDOW)] for start in (1, 5)])


def prepared() -> Any:
    model = make_architecture(NAME)
    assert how_to_decode(model).mode == "together"
    return model


def token_by_token(model: Any) -> mx.array:
    cache = make_prompt_cache(model)
    steps = [model(IDS[:, place : place + 1], cache=cache) for place in range(IDS.shape[1])]
    return mx.concatenate(steps, axis=1)


def gap(first: mx.array, second: mx.array) -> float:
    return number(mx.abs(first - second).max())


def gradients(model: Any, forward: Any) -> dict[str, mx.array]:
    """Of a mean over the logits of `IDS`, which are beyond the window."""
    weights = model.trainable_parameters()

    def total(weights: Any) -> mx.array:
        model.update(weights)
        mean: mx.array = forward(IDS).square().mean()
        return mean

    found = copy_of(mx.grad(total)(weights))
    model.update(weights)
    return found


def test_one_pass_is_what_decoding_sees() -> None:
    model = make_architecture(NAME)
    decoded = token_by_token(model)
    assert gap(model(IDS), decoded) > 1
    how_to_decode(model)
    assert gap(model(IDS), decoded) < 1e-4
    assert gap(token_by_token(model), decoded) == 0.0
    split = SplitForward.of(model)
    assert split is not None
    assert gap(split.logits(split.hidden(IDS)[0]), decoded[0]) < 1e-4


def test_no_other_kind_of_model_is_changed() -> None:
    for name in ("llama", "gemma3_text", "qwen3_5", "gemma2", "llama4"):
        model = architecture(name)
        kinds = [type(module) for _, module in model.named_modules()]
        how_to_decode(model)
        assert [type(module) for _, module in model.named_modules()] == kinds


def test_a_model_that_is_right_already_is_left_as_it_is() -> None:
    model = prepared()
    kinds = [type(module) for _, module in model.named_modules()]
    assert how_to_decode(model).mode == "together"
    assert [type(module) for _, module in model.named_modules()] == kinds


def test_it_can_be_undone() -> None:
    model = make_architecture(NAME)
    before = model(IDS)
    undo = make_fresh_caches(model)
    assert gap(model(IDS), before) > 1
    undo()
    assert gap(model(IDS), before) == 0.0


def test_gradients_are_those_of_a_pass_with_a_cache() -> None:
    found = gradients(model := prepared(), model)
    plain = make_architecture(NAME)
    expected = gradients(plain, lambda ids: plain(ids, cache=make_prompt_cache(plain)))
    assert largest_difference(found, expected) <= 1e-6 * largest(expected)
    assert largest_difference(gradients(plain, plain), expected) > 0.1 * largest(expected)


def test_gradients_are_the_slopes_of_the_decoded_logits() -> None:
    """Along the keys and values that layers share: a central difference, token by token."""
    model = prepared()
    slopes = gradients(model, model)
    shared = [name for name in slopes if ".k_proj." in name or ".v_proj." in name]
    used = [name for name in shared if ".layers.0." in name or ".layers.1." in name]
    assert all(number(mx.abs(slopes[name]).max()) == 0 for name in set(shared) - set(used))
    before = dict(leaves(model.trainable_parameters()))
    for name in used:
        direction = slopes[name] / mx.linalg.norm(slopes[name])
        values = []
        for step in (0.01, -0.01):
            model.update(tree_unflatten([(name, before[name] + step * direction)]))
            values.append(number(token_by_token(model).square().mean()))
        model.update(tree_unflatten([(name, before[name])]))
        slope = number((slopes[name] * direction).sum())
        assert (values[0] - values[1]) / 0.02 == pytest.approx(slope, rel=0.02)


def test_checkpointed_layers_are_refused_because_they_would_lose_what_they_share() -> None:
    model = prepared()
    policy = Policy(model, None, "full", None, dict(model.trainable_parameters()))  # type: ignore[arg-type]
    Learner(policy, GRPOConfig(model="any"))
    with pytest.raises(ModelError, match=r"gradient_checkpointing=True: .* another gradient"):
        Learner(policy, GRPOConfig(model="any", gradient_checkpointing=True))


@pytest.mark.parametrize("fine_tune_type", ["full", "lora"])
def test_a_run_draws_what_it_trains_on_and_saves_what_it_trained(
    tmp_path: Path, fine_tune_type: str
) -> None:
    folder = make_architecture_folder(tmp_path / "model", NAME)
    library = Library(
        tmp_path,
        model=str(folder),
        fine_tune_type=fine_tune_type,
        learning_rate=1e-3,
        max_completion_length=2 * WINDOW,
        num_iterations=2,
        max_steps=2,
    )
    library.train()
    for row in library.updates[0].rows:
        assert row.old_logprobs == pytest.approx(row.sampling_logprobs, abs=1e-4)
    trained = library.trainer.policy
    kind = "model" if fine_tune_type == "full" else "adapters"
    (saved,) = library.folder.rglob(f"final/{kind}.safetensors")
    assert set(mx.load(str(saved))) == set(dict(leaves(trained.weights)))
    adapters = None if fine_tune_type == "full" else str(saved.parent)
    start, _ = load_mlx_lm(str(folder))
    again, _ = load_mlx_lm(str(saved.parent if adapters is None else folder), adapter_path=adapters)
    decoded = token_by_token(trained.model)
    assert gap(token_by_token(start), decoded) > 1e-2
    assert gap(token_by_token(again), decoded) < 1e-3
