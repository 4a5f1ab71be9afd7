"""Greedy decoding of held-out prompts, scored by the reward functions."""

from collections.abc import Callable, Sequence
from typing import Any

from grpo_protocol.messages import Eval
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rewards.types import Scorer
from grpo_trainer.rollout import SamplingOptions, decode_greedily
from grpo_trainer.scoring import batch_for_rewards
from grpo_trainer.summary import known_mean, mean_of

EVAL_BATCH = 64


def evaluate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[EncodedPrompt],
    scorer: Scorer,
    options: SamplingOptions,
    *,
    step: int,
    on_progress: Callable[[int, int], None],
    should_stop: Callable[[], bool],
) -> Eval:
    """Mean reward, in all and by function, and mean length, after `step` optimizer steps."""
    completions = []
    for start in range(0, len(prompts), EVAL_BATCH):
        on_progress(start, len(prompts))
        chunk = [prompt.token_ids for prompt in prompts[start : start + EVAL_BATCH]]
        completions += decode_greedily(model, chunk, options, should_stop=should_stop)
    batch = batch_for_rewards(prompts, 1, completions, tokenizer, step + 1)
    scores = scorer.score(batch)
    metrics: dict[str, float | None] = {
        "eval/reward": known_mean(scores.total),
        "eval/completions/mean_length": mean_of([len(c.token_ids) for c in completions]),
        "eval/completions/clipped_ratio": mean_of(
            [float(c.finish_reason != "stop") for c in completions]
        ),
    }
    for name, values in scores.per_function.items():
        metrics[f"eval/rewards/{name}/mean"] = known_mean(values)
    return Eval(step=step, name="held-out", num_prompts=len(prompts), metrics=metrics)
