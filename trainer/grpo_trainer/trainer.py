"""GRPO training: the loop, and the class through which programs use it.

What it does: samples a group of completions for each prompt, scores them, turns rewards into
advantages within each group, and takes policy-gradient steps on the very ids that were sampled,
with one of the losses of the GRPO family. What it does not by default: no KL to a reference policy,
and no reuse of a rollout for a second update, so the ratio of new to old probability is 1 in value
and only its gradient counts. There is no value model.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from msgspec.structs import replace

from grpo_protocol.config import GRPOConfig
from grpo_protocol.config_input import validate_config
from grpo_protocol.messages import Eval, Generation, RunStatus
from grpo_trainer import blas
from grpo_trainer.adapter_folder import adapter_note, with_adapter_settings
from grpo_trainer.batch_probe import how_to_decode
from grpo_trainer.dataset import Example, as_examples
from grpo_trainer.dynamic_sampling import spread_metric
from grpo_trainer.evaluation import Evaluator
from grpo_trainer.gradient_probe import expect_gradient
from grpo_trainer.group_sampling import GroupSampler
from grpo_trainer.learner import Learner
from grpo_trainer.learning_rate import learning_rate_at
from grpo_trainer.model_source import check_model_name
from grpo_trainer.output.reporter import Reporter
from grpo_trainer.plan import PlannedStep, TrainingPlan
from grpo_trainer.policy import Policy, load_policy
from grpo_trainer.prompts import EncodedPrompt, encode_prompts
from grpo_trainer.rewards.loading import load_scorer
from grpo_trainer.rewards.types import Scorer
from grpo_trainer.rollout import Interrupted
from grpo_trainer.rollout_batch import MiniBatch, RolloutBatch
from grpo_trainer.run import Run
from grpo_trainer.run_opening import open_run
from grpo_trainer.session import Session, display_name, open_session
from grpo_trainer.start_notes import start_notes
from grpo_trainer.step_guard import StepGuard
from grpo_trainer.step_report import StepTimes, describe_generations, describe_step
from grpo_trainer.stopwatch import Stopwatch
from grpo_trainer.training_data import (
    dealt,
    dealt_evenly,
    micro_batches,
    with_advantages,
    without_advantages,
)

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
        validate_config(config)
        decoding = how_to_decode(policy.model, together=config.use_parallel_batch_generation)
        config = decoding.settings_for(config)
        self.config = config
        self.policy = policy
        self.learner = Learner(policy, config)
        self._decoding = decoding
        self.scorer = scorer
        self._session = session
        self._reporter = session.reporter if session else reporter or Reporter()
        self._guard = StepGuard(self._reporter)

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
        config = with_adapter_settings(validate_config(config))
        check_model_name(config.model)
        name = display_name(config)
        reporter = session.reporter if session else Reporter()
        if config.adapter_path:
            reporter.status(adapter_note(config))
        scorer = load_scorer(
            list(reward_functions or config.reward),
            weights=config.reward_weights,
            timeout=config.reward_timeout,
            on_output=reporter.reward_output,
        )
        try:
            if config.dynamic_sampling:
                spread_metric(config, scorer.names, scorer.weights)
            reporter.status(f"loading {name}")
            policy = load_policy(config, reporter.status)
            expect_gradient(policy.model, str(config.model))
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
            self._guard.nan_gradients = run.nan_gradients
            notes = start_notes(
                run.config, self.learner, self._decoding, prompts, len(eval_prompts)
            )
            for level, note in notes:
                run.reporter.log(level, note)
            mode = self._decoding.mode
            evaluator = Evaluator(self.policy, self.scorer, eval_prompts, run, mode=mode)
            sampler = GroupSampler(
                self.policy.model,
                self.policy.source.tokenizer,
                self.scorer,
                prompts,
                run.reporter,
                run.stopping,
                mode=mode,
            )
            status = self._run_to_the_end(run, sampler, prompts, evaluator)
            return TrainResult(
                status, run.step, run.folder, evaluator.results, session.control.signal_number
            )

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
        sampler: GroupSampler,
        prompts: Sequence[EncodedPrompt],
        evaluator: Evaluator,
    ) -> RunStatus:
        status: RunStatus = "completed"
        try:
            if run.evaluated_step != run.step:
                evaluator.evaluate_if_due()
            for planned in run.plan.steps(done=run.step):
                if not run.may_continue():
                    raise Interrupted
                self._take_step(run, sampler, planned, prompts)
                evaluator.evaluate_if_due()
                run.save_if_due()
        except Interrupted:
            status = "stopped"
        run.end(status)
        return status

    def _take_step(
        self,
        run: Run,
        sampler: GroupSampler,
        planned: PlannedStep,
        prompts: Sequence[EncodedPrompt],
    ) -> None:
        """One optimizer step, whole or not at all, after sampling where new rollouts are due."""
        watch = Stopwatch()
        sampler.forget_times()
        run.begin_step(planned)
        mx.reset_peak_memory()

        if planned.samples:
            run.rollout_batch = self._sample(run, sampler, planned, prompts)
        batch = run.rollouts_of(planned)
        mini_batch = batch.mini_batches[planned.mini_batch]
        generations: list[Generation] = []
        answers: list[str] = []
        tokens_seen = run.tokens_seen
        if planned.iteration == 0:
            generations, answers = describe_generations(mini_batch, prompts, planned.number)
            tokens_seen += mini_batch.num_tokens(prompts)
        run.scored(planned, generations, answers)

        run.reporter.phase(planned.number, "training")
        config = replace(run.config, temperature=batch.temperature)
        rate = learning_rate_at(config, planned.number, run.plan.total_steps)
        update = self.learner.update(
            mini_batch.micro_batches, config, planned.number, learning_rate=rate
        )
        self._guard.look_at_update(planned.number, mini_batch, update, config)
        sampling_time = sampler.generation_time + sampler.reward_time
        training_time = watch.lap() - sampling_time

        times = StepTimes(sampler.generation_time, sampler.reward_time, training_time)
        event = describe_step(planned, batch, update, times, rate, tokens_seen)
        run.tokens_seen = tokens_seen  # a step that fails before this has not been seen
        run.nan_gradients = self._guard.nan_gradients
        run.finish_step(event, generations)

    def _sample(
        self,
        run: Run,
        sampler: GroupSampler,
        planned: PlannedStep,
        prompts: Sequence[EncodedPrompt],
    ) -> RolloutBatch:
        """The sampling phase: sample, compare, deal out to steps, and score with these weights."""
        config = run.config
        found = sampler.sample(planned.window, config)
        parts = len(planned.window.mini_batches)
        discarded = dealt_evenly(without_advantages(found.discarded), parts)
        groups = with_advantages(found.kept, self.scorer.weights, config)
        kept = dealt(groups, [len(rows) for rows in planned.window.mini_batches])
        mini_batches = []
        for members, others in zip(kept, discarded, strict=True):
            unscored = micro_batches(members, prompts, config)
            scored = [self.learner.with_logprobs(rows, config) for rows in unscored]
            mini_batches.append(MiniBatch(members, scored, others))
        batch = RolloutBatch(planned.number, config.temperature, mini_batches, found.rounds)
        self._guard.look_at_rollouts(batch, prompts, config)
        return batch

    def _encode(self, examples: Sequence[Example]) -> list[EncodedPrompt]:
        return encode_prompts(
            examples,
            self.policy.source.tokenizer,
            enable_thinking=self.config.enable_thinking,
            max_length=self.config.max_prompt_length,
        )
