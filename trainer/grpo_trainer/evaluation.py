"""Greedy decoding of held-out prompts, scored by the reward functions."""

from collections.abc import Callable, Sequence
from typing import Any

from grpo_protocol.messages import Eval
from grpo_trainer.policy import Policy
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rewards.types import Scorer
from grpo_trainer.rollout import SamplingOptions, decode_greedily
from grpo_trainer.row_batches import DecodingMode
from grpo_trainer.run import Run
from grpo_trainer.scoring import batch_for_rewards
from grpo_trainer.summary import known_mean, mean_of

EVAL_BATCH = 64


class Evaluator:
    """Evaluates the policy of one run whenever it is time."""

    def __init__(
        self,
        policy: Policy,
        scorer: Scorer,
        prompts: Sequence[EncodedPrompt],
        run: Run,
        *,
        mode: DecodingMode = "together",
    ) -> None:
        """`mode`: which of the model's rows may share a forward pass while decoding."""
        self._policy = policy
        self._mode = mode
        self._scorer = scorer
        self._prompts = prompts
        self._run = run
        self.results: list[Eval] = []

    def evaluate_if_due(self) -> None:
        """At either end, and every `eval_interval` steps. Raises `Interrupted` on a STOP."""
        run = self._run
        interval = run.config.eval_interval
        at_either_end = run.step in (0, run.plan.total_steps)
        if not self._prompts or not (at_either_end or (interval and run.step % interval == 0)):
            return
        event = evaluate(
            self._policy.model,
            self._policy.source.tokenizer,
            self._prompts,
            self._scorer,
            SamplingOptions.of(run.config, self._policy.source.tokenizer, mode=self._mode),
            step=run.step,
            on_progress=lambda done, total: run.reporter.phase(run.step, "evaluating", done, total),
            should_stop=run.stopping,
        )
        self.results.append(event)
        run.evaluated(event)


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
        "eval/completions/clipped_ratio": mean_of([float(c.is_truncated) for c in completions]),
    }
    for name, values in scores.per_function.items():
        metrics[f"eval/rewards/{name}/mean"] = known_mean(values)
    return Eval(step=step, name="held-out", num_prompts=len(prompts), metrics=metrics)
