"""GRPO training: the loop, and the class through which programs use it.

What it does: samples a group of completions for each prompt, scores them, turns rewards into
advantages within each group, and takes one clipped policy-gradient step on the very ids that were
sampled. What it does not: no value model, no KL to a reference policy, no reuse of a rollout for a
second update, so the ratio of new to old probability is 1 in value and only its gradient counts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from grpo_protocol.config import GRPOConfig
from grpo_protocol.config_input import validate_config
from grpo_protocol.messages import Eval, RunStatus
from grpo_trainer import blas
from grpo_trainer.advantages import compute_advantages
from grpo_trainer.dataset import Example, as_examples
from grpo_trainer.errors import TrainingError
from grpo_trainer.evaluation import evaluate
from grpo_trainer.learner import Learner, TrainingRow, UpdateResult, learning_rate_of
from grpo_trainer.model_source import check_model_name
from grpo_trainer.output.reporter import Reporter
from grpo_trainer.plan import PlannedStep, TrainingPlan
from grpo_trainer.policy import Policy, load_policy
from grpo_trainer.prompts import EncodedPrompt, encode_prompts
from grpo_trainer.rewards.loading import load_scorer
from grpo_trainer.rewards.types import Scorer
from grpo_trainer.rollout import Completion, Interrupted, SamplingOptions, sample_groups
from grpo_trainer.run import Run
from grpo_trainer.run_opening import open_run
from grpo_trainer.scoring import batch_for_rewards
from grpo_trainer.session import Session, display_name, open_session
from grpo_trainer.step_report import SampledStep, StepTimes, describe_generations, describe_step
from grpo_trainer.stopwatch import Stopwatch

MAX_NAN_GRADIENTS = 100

Rows = Iterable[Mapping[str, Any] | Example]


@dataclass
class TrainResult:
    """How a run ended."""

    status: RunStatus
    steps: int
    folder: Path
    evaluations: list[Eval]
    signal_number: int | None
    """The signal that stopped it, if one did."""


class GRPOTrainer:
    """Trains one policy. Make it with `create`, and close it, or use it in a `with` block."""

    def __init__(
        self,
        policy: Policy,
        config: GRPOConfig,
        scorer: Scorer,
        *,
        reporter: Reporter | None = None,
        session: Session | None = None,
    ) -> None:
        self.config = validate_config(config)
        self.policy = policy
        self.learner = Learner(policy, config)
        self.scorer = scorer
        self._session = session
        self._reporter = session.reporter if session else reporter or Reporter()
        self._nan_gradients = 0
        self._warned_no_signal = False

    @classmethod
    def create(
        cls,
        config: GRPOConfig,
        *,
        reward_functions: Sequence[Callable[..., Any]] | None = None,
        session: Session | None = None,
    ) -> "GRPOTrainer":
        """Checks every setting, then loads the rewards and the model.

        `reward_functions` take the place of `config.reward`. `session` is one that is open already;
        without it `train` opens its own. Raises `ConfigError` or `ModelError`, each with one line
        that names what to change.
        """
        config = validate_config(config)
        check_model_name(config.model)
        name = display_name(config)
        reporter = session.reporter if session else Reporter()
        scorer = load_scorer(
            list(reward_functions or config.reward),
            weights=config.reward_weights,
            timeout=config.reward_timeout,
            on_output=reporter.reward_output,
        )
        try:
            reporter.status(f"loading {name}")
            policy = load_policy(config, reporter.status)
        except BaseException:
            scorer.close()
            raise
        reporter.status(f"loaded {name}: {policy.num_trainable:,} trainable weights")
        return cls(policy, config, scorer, reporter=reporter, session=session)

    def train(self, dataset: Rows, eval_dataset: Rows | None = None) -> TrainResult:
        """Trains on `dataset` until the work is complete or someone stops it.

        Raises `ConfigError` for data that cannot be used, before anything is written, and
        `TrainingError` when the run cannot go on; the run's record is closed in any case.
        """
        prompts = self._encode(as_examples(dataset))
        eval_prompts = self._encode(as_examples(eval_dataset)) if eval_dataset is not None else []
        examples = [prompt.example for prompt in prompts]
        for checked in (examples, [prompt.example for prompt in eval_prompts]):
            if checked:
                self.scorer.check(checked)
        plan = TrainingPlan(len(prompts), self.config)
        with ExitStack() as stack:
            session = self._session or stack.enter_context(self._own_session())
            run = stack.enter_context(open_run(session, self.config, plan, examples, self.learner))
            return self._run_to_the_end(run, session, prompts, eval_prompts)

    def close(self) -> None:
        """Ends the reward worker, if there is one."""
        self.scorer.close()

    def __enter__(self) -> "GRPOTrainer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _own_session(self) -> Iterator[Session]:
        """For programs: the command line opens a session earlier, and warns there."""
        with open_session(self.config, self._reporter) as session:
            if slow := blas.slowness(blas.load()):
                session.reporter.log("warn", blas.complaint(slow))
            yield session

    # --- the loop

    def _run_to_the_end(
        self,
        run: Run,
        session: Session,
        prompts: Sequence[EncodedPrompt],
        eval_prompts: Sequence[EncodedPrompt],
    ) -> TrainResult:
        evaluations: list[Eval] = []
        status: RunStatus = "completed"
        try:
            if run.evaluated_step != run.step and self._evaluation_is_due(run):
                self._evaluate(run, eval_prompts, evaluations)
            for planned in run.plan.steps(done=run.step):
                if not run.may_continue():
                    raise Interrupted
                self._take_step(run, planned, [prompts[row] for row in planned.prompts])
                if self._evaluation_is_due(run):
                    self._evaluate(run, eval_prompts, evaluations)
                run.save_if_due()
        except Interrupted:
            status = "stopped"
        run.end(status)
        return TrainResult(status, run.step, run.folder, evaluations, session.control.signal_number)

    def _take_step(self, run: Run, planned: PlannedStep, prompts: Sequence[EncodedPrompt]) -> None:
        """One optimizer step on one group for each of `prompts`, whole or not at all."""
        config, watch = run.config, Stopwatch()
        run.begin_step(planned)
        mx.reset_peak_memory()

        run.reporter.phase(planned.number, "generating", 0, len(prompts) * config.group_size)
        completions = self._sample(run, planned.number, prompts)
        generation_time = watch.lap()

        run.reporter.phase(planned.number, "scoring")
        sampled = self._score(run, planned, prompts, completions)
        parsed = sampled.parsed()
        generations = describe_generations(sampled, parsed)
        run.scored(planned, generations, [item.text for item in parsed])
        reward_time = watch.lap()

        run.reporter.phase(planned.number, "training")
        rows = sampled.training_rows()
        update = self.learner.update(_split(rows, config), config, planned.number)
        self._guard(run, update, sampled.advantages.has_signal)
        times = StepTimes(generation_time, reward_time, watch.lap())

        run.tokens_seen += sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
        event = describe_step(sampled, update, times, learning_rate_of(config), run.tokens_seen)
        run.finish_step(event, generations)

    def _sample(self, run: Run, step: int, prompts: Sequence[EncodedPrompt]) -> list[Completion]:
        """A group of completions for each prompt, from the current weights."""
        return sample_groups(
            self.policy.model,
            [prompt.token_ids for prompt in prompts],
            run.config.group_size,
            self._sampling(run.config),
            step=step,
            on_token=lambda done, total: run.reporter.phase(step, "generating", done, total),
            should_stop=run.stopping,
        )

    def _score(
        self,
        run: Run,
        planned: PlannedStep,
        prompts: Sequence[EncodedPrompt],
        completions: Sequence[Completion],
    ) -> SampledStep:
        """What each completion is worth, and how it compares within its group."""
        size = run.config.group_size
        batch = batch_for_rewards(
            prompts, size, completions, self.policy.source.tokenizer, planned.number
        )
        scores = self.scorer.score(batch)
        advantages = compute_advantages(scores.total, size, run.config.scale_rewards)
        return SampledStep(
            planned, prompts, size, completions, batch.completions, scores, advantages
        )

    def _guard(self, run: Run, update: UpdateResult, has_signal: bool) -> None:
        """Says when nothing can be learned, and ends a run whose gradients are not finite."""
        if not has_signal:
            if not self._warned_no_signal:
                self._warned_no_signal = True
                run.reporter.log(
                    "warn",
                    "no learning signal: within each group all rewards are equal, so the weights "
                    "stay as they are; vary the task's difficulty or the reward",
                )
            return
        if update.applied:
            return
        self._nan_gradients += 1
        run.reporter.log("error", "gradient or loss is not finite: the step changes no weights")
        if self._nan_gradients >= MAX_NAN_GRADIENTS:
            raise TrainingError(
                f"{MAX_NAN_GRADIENTS} steps had gradients that are not finite; "
                "lower learning_rate, or look at the rewards"
            )

    # --- evaluation and inputs

    def _evaluation_is_due(self, run: Run) -> bool:
        interval = run.config.eval_interval
        at_either_end = run.step in (0, run.plan.total_steps)
        return at_either_end or bool(interval and run.step % interval == 0)

    def _evaluate(
        self, run: Run, prompts: Sequence[EncodedPrompt], evaluations: list[Eval]
    ) -> None:
        if not prompts:
            return
        event = evaluate(
            self.policy.model,
            self.policy.source.tokenizer,
            prompts,
            self.scorer,
            self._sampling(run.config),
            step=run.step,
            on_progress=lambda done, total: run.reporter.phase(run.step, "evaluating", done, total),
            should_stop=run.stopping,
        )
        evaluations.append(event)
        run.evaluated(event)

    def _sampling(self, config: GRPOConfig) -> SamplingOptions:
        return SamplingOptions(
            max_tokens=config.max_completion_length,
            temperature=config.temperature,
            eos_ids=frozenset(self.policy.source.tokenizer.eos_token_ids),
            seed=config.seed,
        )

    def _encode(self, examples: Sequence[Example]) -> list[EncodedPrompt]:
        return encode_prompts(
            examples,
            self.policy.source.tokenizer,
            enable_thinking=self.config.enable_thinking,
            max_length=self.config.max_prompt_length,
        )


def _split(rows: Sequence[TrainingRow], config: GRPOConfig) -> list[Sequence[TrainingRow]]:
    """Rows in micro-batches of `batch_size` groups."""
    size = config.batch_size * config.group_size
    return [rows[start : start + size] for start in range(0, len(rows), size)]
