"""What the checks look at: a model, one group of its own completions, and two optimizer steps.

The order is fixed by what needs what: the scores before the first step, the step, then whatever is
computed at the weights in between, then the second step. Shapes: B rows, P prompts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mlx.utils import tree_map
from msgspec.structs import replace as with_settings

from grpo_protocol.config import GRPOConfig
from grpo_trainer.batch_probe import Decoding, how_to_decode
from grpo_trainer.dataset import as_examples
from grpo_trainer.learner import Learner, StepGradient, UpdateResult
from grpo_trainer.learning_rate import learning_rate_of
from grpo_trainer.policy import Policy
from grpo_trainer.prompts import encode_prompts
from grpo_trainer.rollout import Completion, SamplingOptions, sample_groups
from grpo_trainer.selftest.remembered import remembered
from grpo_trainer.selftest.tensors import (
    IdleExperts,
    checksums,
    idle_experts,
    moved_between,
    reached_by,
    without_gradient_yet,
)
from grpo_trainer.selftest.tolerances import tolerances_of
from grpo_trainer.training_rows import MicroBatch, TrainingRow
from grpo_trainer.trees import ParameterTree, leaves, number

MAX_TOKENS = 12
"""Tokens of a completion: enough to differ, few enough for a large model on a CPU."""
ADVANTAGES = (1.5, -1.0, 1.25, -0.75, 1.0, -0.5, 0.75, -0.5)
"""Of the rows. They do not add up to 0, so that even equal completions have a gradient."""
ROWS_EACH = 2
_QUESTIONS = (
    "17+25=?",
    "Name three colours of the rainbow.",
    "Hi!",
    "Write one sentence about the sea.",
)
_LOUDER = (1.0, 1e2, 1e4, 1e8, 1e12, 1e16)
"""Factors on the learning rate that are tried until the move of every weight shows in float32."""


def settings_of_bench(config: GRPOConfig) -> GRPOConfig:
    """`config` for short completions, without what would blur a comparison.

    Dropout makes every pass another one, and a decay moves weights that have no gradient.
    """
    return with_settings(
        config,
        group_size=len(ADVANTAGES),
        max_completion_length=min(config.max_completion_length, MAX_TOKENS),
        lora_dropout=0.0,
        weight_decay=0.0,
    )


class RepeatableLearner(Learner):
    """The run's learner, which keeps the gradient of its last step, for more tries of the step."""

    kept: StepGradient | None = None

    def gradient(
        self, micro_batches: Sequence[MicroBatch], config: GRPOConfig, seed: int = 0
    ) -> StepGradient:
        """The one that is kept; computed when there is none."""
        if self.kept is None:
            self.kept = super().gradient(micro_batches, config, seed)
        return self.kept


@dataclass
class Step:
    """An optimizer step and what it did to every trained tensor, by name."""

    update: UpdateResult
    learning_rate: float
    gradient: StepGradient
    before: ParameterTree
    after: ParameterTree
    reached: dict[str, bool]
    moved: dict[str, bool]
    not_yet: set[str]
    """Tensors whose gradient is rightly 0, because of weights that start at 0."""
    idle: list[IdleExperts]

    @property
    def hidden(self) -> list[str]:
        """Tensors that have a gradient and did not move."""
        return [name for name, found in self.reached.items() if found and not self.moved[name]]

    def promised_rise(self) -> float:
        """What the whole move would lower the loss by, were it linear."""
        new, old = dict(leaves(self.after)), dict(leaves(self.before))
        slopes = leaves(self.gradient.gradients)
        return -sum(number((slope * (new[name] - old[name])).sum()) for name, slope in slopes)


class Bench:
    """One model under test. Takes each step when it is first asked for."""

    def __init__(self, policy: Policy, config: GRPOConfig) -> None:
        """`config` as `settings_of_bench` makes it."""
        self.policy = policy
        self._asked_together = config.use_parallel_batch_generation
        decoding = self.decoding_or_none
        self.is_padded = decoding is None or decoding.padded
        self.config = config = decoding.settings_for(config) if decoding else config
        self.learner = RepeatableLearner(policy, config)
        self.tolerances = tolerances_of(policy.model)
        self.frozen = checksums(policy.model, policy.weights)

    @remembered
    def decoding(self) -> Decoding:
        """How a run would decode and train this model. Raises `ModelError` when none would."""
        return how_to_decode(self.policy.model, together=self._asked_together)

    @property
    def decoding_or_none(self) -> Decoding | None:
        """The same; None for a model that a run would refuse, which is a check's matter."""
        try:
            return self.decoding
        except Exception:
            return None

    @property
    def sampling(self) -> SamplingOptions:
        """As a run would; one row at a time when nothing is known to be right."""
        decoding = self.decoding_or_none
        return SamplingOptions.of(
            self.config,
            self.policy.source.tokenizer,
            mode="alone" if decoding is None else decoding.mode,
        )

    @remembered
    def prompts(self) -> list[list[int]]:
        """Ids of prompts of unlike lengths, in the model's own chat format if it has one."""
        tokenizer = self.policy.source.tokenizer
        is_chat = tokenizer.chat_template is not None
        asked = [[{"role": "user", "content": text}] if is_chat else text for text in _QUESTIONS]
        examples = as_examples([{"prompt": prompt} for prompt in asked])
        thinking = self.config.enable_thinking
        encoded = encode_prompts(examples, tokenizer, enable_thinking=thinking)
        return [prompt.token_ids for prompt in encoded]

    @remembered
    def completions(self) -> list[Completion]:
        """Sampled ones, `ROWS_EACH` for each prompt."""
        return sample_groups(self.policy.model, self.prompts, ROWS_EACH, self.sampling, step=1)

    @remembered
    def rows(self) -> list[TrainingRow]:
        """The completions [B] with advantages given by hand."""
        prompts = [prompt for prompt in self.prompts for _ in range(ROWS_EACH)]
        found = zip(prompts, self.completions, ADVANTAGES, strict=True)
        return [TrainingRow(ids, made.token_ids, advantage) for ids, made, advantage in found]

    @remembered
    def start_scores(self) -> tuple[list[list[float]], list[list[float]]]:
        """Log-probs and entropies of the rows' tokens before the first step."""
        return self.learner.scores(self.rows, self.config)

    @remembered
    def first_step(self) -> Step:
        """On the rows as they were sampled, under the settings of the run."""
        return self._take_step(self.learner.with_logprobs(self.rows, self.config), self.config, 1)

    @property
    def reusing(self) -> GRPOConfig:
        """The settings with rollouts that are used again, as the second step takes them."""
        return with_settings(self.config, num_iterations=max(2, self.config.num_iterations))

    @remembered
    def stored_rows(self) -> list[TrainingRow]:
        """The rows with the log-probs of the weights between the two steps stored as old ones."""
        if not self.first_step.update.applied:
            raise ArithmeticError("there was no first step to go on from")
        return self.learner.with_logprobs(self.rows, self.reusing)

    @remembered
    def second_step(self) -> Step:
        """With stored log-probs; the adapters' `lora_a` get their first gradient here."""
        return self._take_step(self.stored_rows, self.reusing, 2)

    def _take_step(self, rows: MicroBatch, config: GRPOConfig, number: int) -> Step:
        """The step at the run's learning rate, or at a multiple of it if less would not show."""
        start, state = self.policy.weights, self.learner.optimizer.state
        self.learner.kept = None
        for factor in (*_LOUDER, 1.0):
            self.policy.adopt(start)
            self.learner.optimizer.state = tree_map(lambda array: array, state)
            step = self._try_step(rows, config, number, factor * learning_rate_of(config))
            if not step.update.applied or not step.hidden:
                break
        return step

    def _try_step(
        self, rows: MicroBatch, config: GRPOConfig, number: int, learning_rate: float
    ) -> Step:
        start = self.policy.weights
        update = self.learner.update([rows], config, number, learning_rate=learning_rate)
        gradient = self.learner.kept
        assert gradient is not None
        not_yet = without_gradient_yet(start)
        due = {name: g for name, g in leaves(gradient.gradients) if name not in not_yet}
        return Step(
            update=update,
            learning_rate=learning_rate,
            gradient=gradient,
            before=start,
            after=self.policy.weights,
            reached=reached_by(gradient.gradients),
            moved=moved_between(start, self.policy.weights),
            not_yet=not_yet,
            idle=idle_experts(self.policy.model, due),
        )
