"""What people should know of a run before its first step: one line each."""

from collections.abc import Iterator, Sequence

from grpo_protocol.config import GRPOConfig
from grpo_protocol.messages import LogLevel
from grpo_trainer.batch_probe import Decoding
from grpo_trainer.evaluation import EVAL_BATCH
from grpo_trainer.learner import Learner
from grpo_trainer.memory_estimate import RunSizes
from grpo_trainer.memory_note import memory_note
from grpo_trainer.objective_notes import objective_notes
from grpo_trainer.prompts import EncodedPrompt


def start_notes(
    config: GRPOConfig,
    learner: Learner,
    decoding: Decoding,
    prompts: Sequence[EncodedPrompt],
    num_held_out: int,
) -> Iterator[tuple[LogLevel, str]]:
    """Warnings about model and settings, then what the run will take of the memory."""
    for note in (*learner.policy.notes, *decoding.warnings, *objective_notes(config)):
        yield "warn", note
    longest = max(len(prompt.token_ids) for prompt in prompts)
    rows = max(config.rows_per_window, min(num_held_out, EVAL_BATCH))
    if sizes := RunSizes.of(learner, longest, rows):
        yield memory_note(sizes, config)
