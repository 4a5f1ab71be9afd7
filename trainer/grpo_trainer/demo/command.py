"""The demo: the bundled model on the bundled task, in one call and without network."""

from pathlib import Path

import msgspec

from grpo_protocol import ConfigError
from grpo_protocol.config import GRPOConfig
from grpo_trainer.demo import settings, task
from grpo_trainer.session import Session
from grpo_trainer.trainer import GRPOTrainer, TrainResult

# Without a fast BLAS a step takes 3.5 seconds instead of 0.5, and the curve has climbed by then.
_SLOW = 4.0
_SHORT_STEPS = 60
MODEL_FOLDER = Path(__file__).parent / "model"


def run_demo(config: GRPOConfig, session: Session, slowness: float) -> TrainResult:
    """Trains the bundled model, and says how many held-out sums it got right before and after.

    `slowness` tells how many times slower than usual matrix products are.
    """
    asked_for, config = config.max_steps, demo_config(config, slowness)
    if config.max_steps != asked_for:
        session.reporter.log("info", f"the demo is shortened to {config.max_steps} steps")
    rewards = [function for function, _ in settings.REWARDS]
    with GRPOTrainer.create(config, reward_functions=rewards, session=session) as trainer:
        rows = task.training_rows(settings.TRAINING_ROWS, config.seed)
        result = trainer.train(rows, task.evaluation_rows())
    _compare(result, session)
    return result


def demo_config(config: GRPOConfig, slowness: float = 1.0) -> GRPOConfig:
    """`config` with the bundled model, shorter on a slow machine unless its length was chosen.

    Raises `ConfigError` for inputs that the demo would not use.
    """
    for key in ("model", "data", "eval_data", "reward"):
        if value := getattr(config, key):
            raise ConfigError(f"{key}={value!r}: the demo brings its own; use `train` for yours")
    is_long = config.max_steps == settings.SETTINGS["max_steps"]
    max_steps = _SHORT_STEPS if slowness > _SLOW and is_long else config.max_steps
    return msgspec.structs.replace(config, model=str(MODEL_FOLDER), max_steps=max_steps)


def _compare(result: TrainResult, session: Session) -> None:
    if len(result.evaluations) < 2:
        return
    first, last = result.evaluations[0], result.evaluations[-1]
    before, after = (e.metrics["eval/rewards/correctness/mean"] or 0.0 for e in (first, last))
    session.reporter.log(
        "info",
        f"greedy accuracy on {first.num_prompts} held-out sums: "
        f"{before:.1%} before, {after:.1%} after {last.step} steps",
    )
