"""The probe finds what an architecture cannot do, whatever the reason, and changes nothing."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from architectures import architecture, make_architecture, make_architecture_folder
from faulty_models import (
    FailsWithCache,
    Like,
    LosesTheLast,
    MasksTokens,
    MergesWrongly,
    MixesPlainRows,
    NeverMerges,
    NotANumber,
    OnePosition,
    OneRow,
    OutOfReach,
    ReadsOnePrompt,
    SeesOtherRows,
    With,
    WrongWithCache,
)
from grpo_trainer import rollout
from grpo_trainer.batch_probe import Decoding, how_to_decode
from grpo_trainer.errors import ModelError
from grpo_trainer.row_batches import row_batches
from grpo_trainer.trees import leaves
from library_runs import Library


def test_a_sound_model_decodes_together_and_trains_padded() -> None:
    for model in (architecture("llama"), architecture("qwen3_5"), MasksTokens()):
        assert how_to_decode(model) == Decoding(model.model_type)
        assert how_to_decode(model).warnings == []


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: With(NeverMerges), "fails: rows of$"),
        (lambda: Like("gemma2"), "fails: .*broadcast"),
        (lambda: Like("deepseek_v41"), "fails: .* no attribute 'merge'"),
        (lambda: With(MergesWrongly), "gives logits that are off by .* of their spread"),
        (OnePosition, "gives logits that are off by .* of their spread"),
    ],
    ids=["merge fails", "mask", "no merge", "filter is wrong", "one position"],
)
def test_rows_that_cannot_all_be_decoded_together_are_decoded_by_length(
    make: Callable[[], Any], reason: str
) -> None:
    model = make()
    found = how_to_decode(model)
    assert (found.mode, found.padded) == ("equal lengths", True)
    (warning,) = found.warnings
    assert warning.startswith(
        f"model_type='{model.model_type}': prompts of unlike lengths are decoded one after the "
        "other, each with all of its completions, which is slower; "
    )
    assert "\n" not in warning
    assert re.search(f"decoding them together {reason}", warning)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (NotANumber, "gives logits that are off by inf"),
        (OneRow, "fails: one row, please$"),
        (MixesPlainRows, "gives logits that are off by .* of their spread"),
        (ReadsOnePrompt, "gives logits that are off by .* of their spread"),
        (lambda: With(OutOfReach), "fails: rows of$"),
    ],
    ids=["no number", "one row", "rows mixed", "prompts mixed", "rows out of reach"],
)
def test_rows_that_cannot_share_a_pass_even_at_one_length_are_decoded_alone(
    make: Callable[[], Any], reason: str
) -> None:
    found = how_to_decode(make())
    assert (found.mode, found.padded) == ("alone", True)
    (warning,) = found.warnings
    assert warning.startswith("model_type='llama': completions are decoded one at a time, which")
    assert "\n" not in warning
    assert re.search(f"decoding them together {reason}", warning)


def test_a_plain_cache_whose_rows_are_mixed_up_when_some_leave_is_found_out() -> None:
    assert how_to_decode(With(LosesTheLast)).mode == "alone"


def test_the_fault_of_a_model_that_masks_tokens_is_found_too() -> None:
    class Faulty(MasksTokens, OnePosition):
        pass

    assert how_to_decode(Faulty()).mode != "together"


def test_rows_that_disturb_each_other_in_training_are_trained_alone() -> None:
    found = how_to_decode(SeesOtherRows())
    assert found.mode == "together"
    assert not found.padded
    (warning,) = found.warnings
    assert warning.startswith("model_type='llama': rows are trained one at a time")


@pytest.mark.parametrize("together", [True, False])
def test_a_model_that_decodes_otherwise_than_it_trains_is_refused(together: bool) -> None:
    with pytest.raises(ModelError, match="model_type='llama': rollouts and training would disag"):
        how_to_decode(WrongWithCache(), together=together)


def test_a_model_that_cannot_run_here_is_refused() -> None:
    class Fails(Like):
        def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
            raise RuntimeError("no such kernel\nin this back end")

    with pytest.raises(
        ModelError, match="model_type='llama': a forward pass fails: no such kernel;"
    ):
        how_to_decode(Fails())


def test_who_decodes_one_at_a_time_anyway_hears_of_no_obstacle() -> None:
    for name in ("gemma2", "llama"):
        found = how_to_decode(architecture(name), together=False)
        assert (found.mode, found.warnings) == ("alone", [])
    assert len(how_to_decode(architecture("gemma2")).warnings) == 1


def test_rows_reach_beyond_a_window_that_is_not_too_long() -> None:
    """Only beyond its window does this architecture decode otherwise than it trains.

    A cache of its own does not help: in one pass it holds as many tokens as there are.
    """
    model = make_architecture("plamo3", sliding_window=64)
    with pytest.raises(ModelError, match="training would disagree"):
        how_to_decode(model)
    assert how_to_decode(model, longest=67).mode == "together"


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "lfm2"])
def test_rounding_in_half_precision_is_no_fault_and_a_fault_is_one(name: str, dtype: Any) -> None:
    model = make_architecture(name)
    model.set_dtype(dtype)
    assert how_to_decode(model) == Decoding(model.model_type)
    assert how_to_decode(OnePosition(model=model)).mode != "together"


class Noisy(nn.Module):  # type: ignore[misc, name-defined]
    """Drops half of the last hidden state out, in training."""

    def __init__(self) -> None:
        super().__init__()
        self.model = make_architecture("llama")
        self.model_type = "noisy"
        self.dropout = nn.Dropout(0.5)  # type: ignore[attr-defined]

    @property
    def layers(self) -> Any:
        return self.model.layers

    def __call__(self, ids: mx.array, cache: Any = None) -> mx.array:
        hidden = self.model.model(ids, cache=cache)
        logits: mx.array = self.model.lm_head(self.dropout(hidden))
        return logits


@pytest.mark.parametrize("training", [True, False])
def test_the_probe_leaves_mode_weights_and_random_numbers_alone(training: bool) -> None:
    model = Noisy()
    model.train(training)
    before = {name: mx.array(value) for name, value in leaves(model.parameters())}
    mx.random.seed(5)
    expected = mx.random.uniform(shape=(4,)).tolist()
    mx.random.seed(5)
    assert how_to_decode(model).mode == "together"
    assert mx.random.uniform(shape=(4,)).tolist() == expected
    assert {module.training for module in model.modules()} == {training}
    assert all(mx.array_equal(value, before[name]) for name, value in leaves(model.parameters()))


@pytest.mark.parametrize(
    "make", [lambda: make_architecture("plamo3"), WrongWithCache, FailsWithCache]
)
def test_a_refusal_leaves_mode_and_classes_alone_too(make: Callable[[], Any]) -> None:
    model = make()
    model.train()
    kinds = [type(module) for _, module in model.named_modules()]
    with pytest.raises(ModelError, match="rollouts and training would disagree"):
        how_to_decode(model)
    assert model.training
    assert [type(module) for _, module in model.named_modules()] == kinds
    model.eval()


@pytest.mark.parametrize("parallel", [True, False])
def test_a_run_decodes_as_the_probe_found_and_says_what_is_slower(
    parallel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On prompts of two lengths, which this architecture cannot decode together."""
    modes: list[str] = []

    def batches(prompts: Any, group_size: int, mode: Any, most: Any) -> Any:
        modes.append(mode)
        return row_batches(prompts, group_size, mode, most)

    monkeypatch.setattr(rollout, "row_batches", batches)
    library = Library(
        tmp_path,
        model=str(make_architecture_folder(tmp_path / "model", "gemma2")),
        fine_tune_type="full",
        use_parallel_batch_generation=parallel,
        num_iterations=2,
        max_steps=2,
    )
    rows = [{"prompt": text} for text in ("1 + 1 =", "12 + 34 =")]
    assert library.train(rows, rows).status == "completed"
    for row in library.updates[0].rows:
        assert row.old_logprobs == pytest.approx(row.sampling_logprobs, abs=1e-4)
    assert set(modes) == {"equal lengths" if parallel else "alone"}
    slower = [line for line in library.logs("warn") if "decoded" in line]
    assert len(slower) == parallel
