"""Does the demo learn as fast as it should? Runs it for some seeds and judges each curve.

    python tests/bench/demo_curve.py [--seeds 0 1 2]

The bar, on two CPU cores with OpenBLAS: the mean reward, as a moving average over 20 steps, starts
at 0.5 or less and reaches 0.8 within 150 steps and three minutes; greedy accuracy on the held-out
sums rises by 25 points or more. Prints a line for each seed and exits 1 when one misses the bar.
"""

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EMA_WEIGHT = 2 / 21
START, GOAL, SECONDS, POINTS = 0.5, 0.8, 180.0, 0.25


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    print("seed  first  step of 0.8   last  accuracy before  after  seconds  bar")
    missed = [seed for seed in parser.parse_args().seeds if not judge(seed)]
    return 1 if missed else 0


def judge(seed: int) -> bool:
    """Runs the demo with `seed`, prints its line, and tells whether it holds the bar."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = ["demo", "--output-dir", str(run), f"seed={seed}", "log_console=false"]
        start = time.monotonic()
        subprocess.run([sys.executable, "-P", "-m", "grpo_trainer", *words], check=True)
        seconds = time.monotonic() - start
        rewards, accuracies = read(run / "outputs.db")
    curve = moving_average(rewards)
    reached = next((step for step, value in enumerate(curve, 1) if value >= GOAL), None)
    before, after = accuracies[0], accuracies[-1]
    holds = (
        curve[0] <= START
        and reached is not None
        and reached <= 150
        and seconds <= SECONDS
        and after - before >= POINTS
    )
    print(
        f"{seed:4}  {curve[0]:5.3f}  {reached or '-':>11}  {curve[-1]:5.3f}"
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
