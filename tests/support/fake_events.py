"""The events of one step of the fake trainer: a run whose reward climbs, the same each time."""

import argparse
import random
from collections.abc import Iterator

from grpo_protocol.messages import Event, Generation, Step


def step_events(
    args: argparse.Namespace, number: int, epoch: int, step_in_epoch: int
) -> Iterator[Event]:
    """The step and then its completions."""
    batch = list(completions(args, number))
    mean = sum(item.reward or 0.0 for item in batch) / len(batch)
    yield Step(
        step=number,
        loss=None if "null-loss" in args.misbehave else 0.02 / number,
        total_tokens=sum(item.tokens for item in batch),
        mean_reward=mean,
        std_reward=0.3,
        std_advantage=0.9,
        generation_time_ms=max(1.0, args.interval * 800),
        reward_time_ms=2.0,
        training_time_ms=max(1.0, args.interval * 200),
        peak_memory_mb=812.0,
        active_memory_mb=640.0,
        epoch=None if args.no_acks else epoch,
        step_in_epoch=None if args.no_acks else step_in_epoch,
        gradient_norm=0.4,
        learning_rate=1e-5,
        metrics={
            "rewards/correct/mean": mean * 0.8,
            "rewards/format/mean": mean * 0.2,
            "completions/mean_length": 24.0,
            "completions/clipped_ratio": 0.05,
            "frac_reward_zero_std": 0.25,
            "entropy": 0.7,
            "kl": 0.001,
        },
    )
    yield from batch


def completions(args: argparse.Namespace, step: int) -> Iterator[Generation]:
    """Worded sums, right more often from step to step."""
    chance = random.Random(step)
    for index in range(args.prompts * args.group_size):
        prompt_index, row = divmod(index, args.group_size)
        left, right = 10 + (step * 7 + prompt_index) % 80, 11 + (step * 3) % 80
        is_right = chance.random() < 0.2 + 0.7 * min(1.0, step / 40)
        answer = left + right if is_right else left + right + 1
        reward = 1.0 if is_right else 0.2
        yield Generation(
            index=index,
            prompt=f"Compute {left} + {right}.",
            completion=f"<think>{left} + {right}</think>\n<answer>{answer}</answer>",
            reward=reward,
            tokens=20 + chance.randrange(12),
            reward_details={"correct": reward - 0.2, "format": 0.2},
            step=None if args.no_acks else step,
            prompt_index=None if args.no_acks else prompt_index,
            group_index=None if args.no_acks else row,
            advantage=0.9 if is_right else -0.9,
            expected_answer=str(left + right),
            finish_reason="stop",
        )
