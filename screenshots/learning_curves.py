"""Draws the learning curves of the README from the records of the runs.

`python screenshots/learning_curves.py` draws `learning_curves.svg` from `sums_full.jsonl` and
`sums_lora.jsonl`; `python screenshots/learning_curves.py take LOG NAME` first makes such a file
from the log of a run: its steps and evaluations with what is drawn of them.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import matplotlib.pyplot as plt

HERE: Final = Path(__file__).resolve().parent
RUNS: Final = {"sums_full": "every weight", "sums_lora": "adapters, rank 16"}
SAMPLED: Final = "rewards/correct_sum/mean"
GREEDY: Final = "eval/rewards/correct_sum/mean"
KEPT: Final = (SAMPLED, GREEDY, "frac_reward_zero_std", "entropy", "completions/mean_length")


def take(log: Path, name: str) -> None:
    """Writes what is drawn of `log` beside this file."""
    lines = []
    for line in log.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] in ("step", "eval"):
            metrics = {key: event["metrics"][key] for key in KEPT if key in event["metrics"]}
            lines.append({"event": event["event"], "step": event["step"], "metrics": metrics})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (HERE / f"{name}.jsonl").write_text(text, encoding="utf-8")


def points(name: str, event: str, metric: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric in one record."""
    text = (HERE / f"{name}.jsonl").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    chosen = [item for item in found if item["event"] == event and metric in item["metrics"]]
    return [item["step"] for item in chosen], [item["metrics"][metric] for item in chosen]


def draw(target: Path) -> None:
    """One panel for each run: sampled while training, and greedy on held-out sums."""
    mpl.rcParams["svg.hashsalt"] = "grpo-tui"
    figure, panels = plt.subplots(1, len(RUNS), figsize=(9, 3.2), sharey=True, layout="constrained")
    for panel, (name, title) in zip(panels, RUNS.items(), strict=True):
        panel.plot(*points(name, "step", SAMPLED), color="#9aa5b1", lw=1, label="trained on")
        panel.plot(*points(name, "eval", GREEDY), color="#1f6feb", marker="o", label="greedy")
        panel.axhline(0.95, color="#2da44e", lw=0.8, ls="--")
        panel.set(title=title, xlabel="optimizer step", ylim=(0, 1))
        panel.grid(alpha=0.2)
    panels[0].set_ylabel("sums that are right")
    panels[0].legend(loc="lower right", frameon=False)
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1:2] == ["take"]:
        take(Path(sys.argv[2]), sys.argv[3])
    else:
        draw(HERE / "learning_curves.svg")
