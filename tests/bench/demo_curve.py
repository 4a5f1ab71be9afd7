"""Does the demo learn as fast as it should? Runs it for some seeds and judges each curve.

    python tests/bench/demo_curve.py [--seeds 0 1 2] [--losses grpo bnpo … | all]

The bar, on two CPU cores with OpenBLAS: the mean reward, as a moving average over 20 steps, starts
at 0.5 or less and reaches 0.8 within 150 steps and three minutes; greedy accuracy on the held-out
sums rises by 25 points or more. The settings are tuned for the default loss; another loss, with
settings otherwise the same, has to raise the moving average by 0.1 and the accuracy by 10 points.
Prints a line for each run and exits 1 when one misses the bar.
"""

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

from grpo_protocol.config import GRPOConfig
from grpo_protocol.settings.loss import LossType

EMA_WEIGHT = 2 / 21
START, GOAL, SECONDS, POINTS = 0.5, 0.8, 180.0, 0.25
RISE, OTHER_POINTS = 0.1, 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--losses", nargs="+", default=[GRPOConfig().loss_type])
    options = parser.parse_args()
    losses = get_args(LossType) if options.losses == ["all"] else options.losses
    print("loss     seed  first  step of 0.8   last  accuracy before  after  seconds  bar")
    runs = [(loss, seed) for loss in losses for seed in options.seeds]
    missed = [run for run in runs if not judge(*run)]
    return 1 if missed else 0


def judge(loss: str, seed: int) -> bool:
    """Runs the demo, prints its line, and tells whether it holds the bar."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = [f"seed={seed}", f"loss_type={loss}", "log_console=false"]
        words = ["demo", "--output-dir", str(run), *settings]
        start = time.monotonic()
        subprocess.run([sys.executable, "-P", "-m", "grpo_trainer", *words], check=True)
        seconds = time.monotonic() - start
        rewards, accuracies = read(run / "outputs.db")
    curve = moving_average(rewards)
    reached = next((step for step, value in enumerate(curve, 1) if value >= GOAL), None)
    before, after = accuracies[0], accuracies[-1]
    if loss == GRPOConfig().loss_type:
        fast = reached is not None and reached <= 150 and seconds <= SECONDS
        holds = fast and curve[0] <= START and after - before >= POINTS
    else:
        holds = curve[-1] - curve[0] >= RISE and after - before >= OTHER_POINTS
    print(
        f"{loss:8} {seed:4}  {curve[0]:5.3f}  {reached or '-':>11}  {curve[-1]:5.3f}"
        f"  {before:15.1%}  {after:5.1%}  {seconds:7.1f}  {'holds' if holds else 'MISSED'}",
        flush=True,
    )
    return holds


def read(path: Path) -> tuple[list[float], list[float]]:
    """Mean reward of each step, and accuracy of each evaluation."""
    with sqlite3.connect(path) as db:
        steps = db.execute("SELECT mean_reward FROM training_steps ORDER BY step")
        evaluations = db.execute("SELECT metrics FROM evaluations ORDER BY step")
        accuracy = "eval/rewards/correctness/mean"
        return [row[0] for row in steps], [json.loads(row[0])[accuracy] for row in evaluations]


def moving_average(values: list[float]) -> list[float]:
    """Exponential, over about 20 values, starting from the first."""
    average, curve = values[0], []
    for value in values:
        average += EMA_WEIGHT * (value - average)
        curve.append(average)
    return curve


if __name__ == "__main__":
    sys.exit(main())
