"""Samples groups of completions with the current weights, scores them, and replaces flat ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_protocol.config import GRPOConfig
from grpo_trainer.dynamic_sampling import refill_prompts, spread_metric
from grpo_trainer.output.reporter import Reporter
from grpo_trainer.plan import PlannedWindow
from grpo_trainer.prompts import EncodedPrompt
from grpo_trainer.rewards.types import Scorer
from grpo_trainer.rollout import SamplingOptions, sample_groups
from grpo_trainer.rollout_batch import ScoredGroup
from grpo_trainer.row_batches import DecodingMode
from grpo_trainer.scoring import batch_for_rewards
from grpo_trainer.stopwatch import Stopwatch
from grpo_trainer.summary import has_spread


@dataclass
class SampledGroups:
    """The groups of one sampling phase."""

    kept: list[ScoredGroup]
    discarded: list[ScoredGroup]
    """Without spread, and replaced by other prompts as far as the attempts went."""
    rounds: int = 1


class GroupSampler:
    """Asks one model for completions of one dataset's prompts."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        scorer: Scorer,
        prompts: Sequence[EncodedPrompt],
        reporter: Reporter,
        should_stop: Callable[[], bool],
        *,
        mode: DecodingMode = "together",
    ) -> None:
        """`mode`: which of the model's rows may share a forward pass while decoding."""
        self._model = model
        self._tokenizer = tokenizer
        self._scorer = scorer
        self._prompts = prompts
        self._reporter = reporter
        self._should_stop = should_stop
        self._mode = mode
        self.generation_time = 0.0
        """Seconds spent sampling so far."""
        self.reward_time = 0.0
        """Seconds spent scoring so far."""

    def forget_times(self) -> None:
        """Begins to measure anew."""
        self.generation_time = self.reward_time = 0.0

    def sample(self, planned: PlannedWindow, config: GRPOConfig) -> SampledGroups:
        """A group for each planned prompt. Raises `Interrupted` when the run is to stop.

        With dynamic sampling a group without spread gives way to that of another prompt, until the
        window is full or the attempts are used up.
        """
        wanted = planned.prompts
        groups = self._round(planned.first_step, wanted, 0, config)
        if not config.dynamic_sampling:
            return SampledGroups(groups, [])
        found = SampledGroups([], [])
        metric = spread_metric(config, self._scorer.names, self._scorer.weights)
        self._sort_in(groups, metric, found, config)
        refill = refill_prompts(len(self._prompts), config.seed, planned.first_step, wanted)
        while len(found.kept) < len(wanted) and found.rounds < config.dynamic_sampling_attempts:
            chosen = [next(refill) for _ in range(len(wanted) - len(found.kept))]
            sampled = len(found.kept) + len(found.discarded)
            more = self._round(planned.first_step, chosen, sampled, config)
            self._sort_in(more, metric, found, config)
            found.rounds += 1
        return found

    def _sort_in(
        self,
        groups: Sequence[ScoredGroup],
        metric: str,
        found: SampledGroups,
        config: GRPOConfig,
    ) -> None:
        """Keeps the groups whose completions differ, those left aside that no update will see."""
        for group in groups:
            pairs = zip(
                group.reward_parts.get(metric, group.rewards), group.completions, strict=True
            )
            values = [
                value
                for value, item in pairs
                if not (config.degenerate_filter and item.is_at_limit)
            ]
            (found.kept if has_spread(values) else found.discarded).append(group)

    def _round(
        self, step: int, prompt_rows: Sequence[int], groups_before: int, config: GRPOConfig
    ) -> list[ScoredGroup]:
        """One group for each of `prompt_rows`, sampled together and scored together."""
        watch, size = Stopwatch(), config.group_size
        prompts = [self._prompts[row] for row in prompt_rows]
        self._reporter.phase(step, "generating", 0, len(prompts) * size)
        completions = sample_groups(
            self._model,
            [prompt.token_ids for prompt in prompts],
            size,
            SamplingOptions.of(config, self._tokenizer, mode=self._mode),
            step=step,
            first_row=groups_before * size,
            on_token=lambda done, total: self._reporter.phase(step, "generating", done, total),
            should_stop=self._should_stop,
        )
        self.generation_time += watch.lap()
        self._reporter.phase(step, "scoring")
        batch = batch_for_rewards(prompts, size, completions, self._tokenizer, step)
        scores = self._scorer.score(batch)
        self.reward_time += watch.lap()
        spans = [slice(start, start + size) for start in range(0, len(completions), size)]
        return [
            ScoredGroup(
                prompt=row,
                completions=list(completions[span]),
                texts=batch.completions[span],
                rewards=scores.total[span],
                reward_parts={name: part[span] for name, part in scores.per_function.items()},
            )
            for row, span in zip(prompt_rows, spans, strict=True)
        ]
