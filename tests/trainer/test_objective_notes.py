"""Settings that may mean something else than what was meant are named at the start."""

from pathlib import Path
from typing import Any

import pytest

from grpo_protocol import GRPOConfig, load_config
from grpo_trainer.demo.settings import SETTINGS
from grpo_trainer.objective_notes import objective_notes
from library_runs import Library

LOSSES = ["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo", "gmpo"]
REUSE = [
    {"num_iterations": 2},
    {"steps_per_generation": 4, "gradient_accumulation_steps": 2},
]
FILTERS: list[dict[str, Any]] = [{"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.05}]


def notes(**settings: Any) -> list[str]:
    found = objective_notes(GRPOConfig(**settings))
    assert all("\n" not in note for note in found)
    return found


@pytest.mark.parametrize("loss_type", LOSSES)
def test_defaults_raise_no_note(loss_type: str) -> None:
    assert notes(loss_type=loss_type) == []


def test_the_demo_raises_no_note() -> None:
    assert objective_notes(load_config(SETTINGS)) == []


@pytest.mark.parametrize("reuse", REUSE)
@pytest.mark.parametrize("filters", FILTERS)
def test_filters_with_rollouts_that_are_used_again(
    filters: dict[str, Any], reuse: dict[str, Any]
) -> None:
    (note,) = notes(**filters, **reuse)
    assert note.startswith("top_k, top_p or min_p with rollouts that are used more than once")
    assert "mismatch_correction" in note
    assert notes(**filters) == notes(**reuse) == []


def test_all_filters_with_all_reuse_are_one_note() -> None:
    together = {key: value for settings in (*FILTERS, *REUSE) for key, value in settings.items()}
    assert len(notes(**together)) == 1


def test_accumulation_alone_is_no_reuse() -> None:
    assert notes(top_p=0.9, gradient_accumulation_steps=4, steps_per_generation=4) == []


@pytest.mark.parametrize(
    ("loss_type", "count"),
    [
        ("bnpo", 1),
        ("dr_grpo", 1),
        ("dapo", 1),
        ("cispo", 1),
        ("grpo", 0),
        ("sapo", 0),
        ("luspo", 0),
        ("gmpo", 0),
    ],
)
def test_the_ratio_of_a_sequence_in_a_loss_that_weighs_it_by_its_length(
    loss_type: str, count: int
) -> None:
    found = notes(loss_type=loss_type, importance_sampling_level="sequence")
    assert len(found) == count
    assert all(f"importance_sampling_level=sequence with loss_type={loss_type}" in n for n in found)


def test_an_off_policy_mask_without_anything_off_policy() -> None:
    (note,) = notes(off_policy_mask_threshold=0.5)
    assert note.startswith("off_policy_mask_threshold: each rollout is used once")
    assert notes(off_policy_mask_threshold=0.5, num_iterations=2) == []


def test_a_run_tells_its_notes_and_records_them(tmp_path: Path) -> None:
    library = Library(tmp_path, max_steps=1, num_iterations=2, top_p=0.9)
    library.train()
    expected = objective_notes(library.trainer.config)
    assert len(expected) == 1
    assert library.logs("warn") == expected
    in_database = library.query("SELECT message FROM logs WHERE level = 'warn'")
    assert [message for (message,) in in_database] == expected
    in_log = [record for record in library.records("log") if record["level"] == "warn"]
    assert [record["message"] for record in in_log] == expected


def test_a_run_with_defaults_warns_of_nothing(tmp_path: Path) -> None:
    library = Library(tmp_path, max_steps=2)
    library.train()
    assert library.logs("warn") == []


@pytest.mark.parametrize(
    "settings", [{"importance_sampling_level": "sequence"}, {"loss_type": "luspo"}]
)
def test_a_wide_clip_on_whole_completions_is_named_once_it_can_act(
    settings: dict[str, Any],
) -> None:
    (note,) = notes(**settings, num_iterations=2)
    assert note.startswith("clip_epsilon=0.2 with a ratio of whole completions")
    assert notes(**settings, num_iterations=2, clip_epsilon=3e-4) == notes(**settings) == []
