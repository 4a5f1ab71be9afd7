"""The list of metrics: titles that can be told apart, units, order, one line for one number."""

import re
from pathlib import Path

import pytest

from dashboard import dashboard
from grpo_protocol.messages import Eval, Step
from grpo_tui.drawing.metric_specs import TITLE_WIDTH, spec_of, specs_for
from grpo_tui.state.metric_names import step_values

FUNCTIONS = ("correctness_reward", "correctness_of_steps", "format", "xml_open", "xml_close")
PAGE = (Path(__file__).parents[2] / "protocol" / "README.md").read_text()


def documented() -> list[str]:
    """Every metric in the tables of the protocol's page, those of a function for each of them."""
    rows = PAGE.partition("## Metrics\n")[2].partition("\n## ")[0].splitlines()
    cells = [row.split(" | ")[0] for row in rows if row.startswith("| `")]
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    return [
        name.replace("NAME", function)
        for name in names
        for function in (FUNCTIONS if "NAME" in name else FUNCTIONS[:1])
    ]


OF_EVAL = [name for name in documented() if name.startswith("eval/")]
METRICS = [name for name in documented() if name not in OF_EVAL]
STEP = Step(
    1,
    0.1,
    100,
    mean_reward=0.5,
    std_reward=0.2,
    mean_advantage=0.25,
    std_advantage=1.0,
    perplexity=2.0,
    token_accuracy=0.5,
    generation_time_ms=500.0,
    reward_time_ms=1.0,
    training_time_ms=200.0,
    peak_memory_mb=10.0,
    active_memory_mb=5.0,
    gradient_norm=1.0,
    learning_rate=1e-5,
    metrics=dict.fromkeys(METRICS, 0.25),
)
EVALUATED = Eval(0, "held-out", 8, dict.fromkeys(OF_EVAL, 0.5))


async def test_no_two_metrics_of_a_full_list_look_the_same() -> None:
    async with dashboard((120, 200)) as board:
        await board.begin()
        await board.feed(EVALUATED, STEP)
        await board.press("5")
        first = next(i for i, line in enumerate(board.lines) if "reward " in line)
        start = board.lines[first].index("reward ")
        specs = specs_for([*step_values(STEP), *(_charted(name) for name in EVALUATED.metrics)])
        rows = board.lines[first : first + len(specs)]
        shown = [row[start : start + TITLE_WIDTH] for row in rows]
    assert [title.rstrip() for title in shown] == [spec.title for spec in specs]
    assert len(set(shown)) == len(specs) > 70


def _charted(name: str) -> str:
    return "eval/held-out/" + name.removeprefix("eval/")


def test_every_metric_of_the_trainer_has_a_title_of_its_own() -> None:
    for spec in specs_for(step_values(STEP)):
        assert spec.title != spec.name or spec.name in {"reward", "entropy", "loss", "perplexity"}
        assert len(spec.title) <= TITLE_WIDTH


def test_a_number_that_has_two_names_is_charted_once() -> None:
    values = step_values(STEP)
    assert values["adv_mean"] == 0.25
    assert "advantages/mean" not in values
    assert step_values(Step(1, 0.1, 9, metrics={"advantages/mean": 0.5}))["adv_mean"] == 0.5


@pytest.mark.parametrize(
    ("name", "title", "value", "shown"),
    [
        ("reward_coverage", "rewarded", 0.75, "75%"),
        ("completions/trained_ratio", "trained", 0.75, "75%"),
        ("completions/repetition_ratio", "repetitive", 0.75, "75%"),
        ("clip_ratio/region_mean", "clipped", 0.012, "1.2%"),
        ("clip_ratio/low_min", "clip low min", 0.5, "50%"),
        ("clip_ratio/high_max", "clip hi max", 0.5, "50%"),
        ("cispo_clip_ratio", "capped", 0.5, "50%"),
        ("rewards/a/coverage", "  a given", 0.75, "75%"),
        ("rewards/a/std", "  a std", 0.75, "0.750"),
        ("eval/held-out/completions/clipped_ratio", "eval trunc~ed", 0.75, "75%"),
        ("eval/held-out/completions/mean_length", "eval length", 24.0, "24.0"),
        ("eval/held-out/rewards/a/mean", "eval a", 0.75, "0.750"),
        ("eval/held-out/accuracy", "eval accuracy", 0.75, "0.750"),
        ("eval/reward", "eval reward", 0.75, "0.750"),
        ("rollout/age", "rollout age", 3.0, "3"),
        ("dynamic_sampling/kept_groups", "kept", 2.5, "2.50"),
        ("completions/max_length", "longest", 2048.0, "2.05k"),
        ("num_tokens", "tokens seen", 11_300_000.0, "11.3M"),
        ("advantages/min", "adv min", -1.5, "-1.50"),
        ("made/up", "made/up", 1.0, "1.00"),
    ],
)
def test_title_and_unit_of_a_metric(name: str, title: str, value: float, shown: str) -> None:
    spec = spec_of(name)
    assert (spec.name, spec.title, spec.format(value)) == (name, title, shown)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_count_that_is_none_is_shown_like_any_number(value: float | None) -> None:
    assert spec_of("rollout/age").format(value) == spec_of("kl").format(value)


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("reward_coverage", "up"),
        ("completions/trained_ratio", "up"),
        ("rewards/a/coverage", "up"),
        ("eval/held-out/completions/clipped_ratio", "down"),
        ("eval/held-out/reward", "up"),
        ("clip_ratio/region_mean", ""),
        ("rewards/a/std", ""),
    ],
)
def test_a_metric_has_a_good_direction_where_that_can_be_said(name: str, better: str) -> None:
    assert spec_of(name).better == better


def test_what_tells_most_stands_first_and_parts_stand_below_their_whole() -> None:
    present = [
        "num_tokens",
        "sampling/importance_sampling_ratio/mean",
        "rewards/a/std",
        "rewards/b/coverage",
        "completions/trained_ratio",
        "rewards/a/coverage",
        "made/up",
        "clip_ratio/region_mean",
        "reward_coverage",
        "kl",
        "rewards/a/mean",
        "eval/held-out/completions/mean_length",
        "eval/held-out/reward",
        "reward",
    ]
    assert [spec.title for spec in specs_for(present)] == [
        *("reward", "  a", "eval reward", "KL", "clipped"),
        *("rewarded", "  b given", "  a given", "  a std"),
        *("trained", "IS mean", "tokens seen", "made/up", "eval length"),
    ]


def test_a_long_name_keeps_both_ends_and_what_is_said_of_it() -> None:
    assert spec_of("rewards/correctness/mean").title == "  correctness"
    assert spec_of("rewards/correctness/std").title == "  corr~ss std"
    assert spec_of("rewards/correctness\n/std").title.isprintable()
