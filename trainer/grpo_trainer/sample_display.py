"""Which of a step's completions the dashboard is sent."""

from collections.abc import Sequence

from grpo_protocol.config import SampleDisplay
from grpo_protocol.messages import Generation


def choose_samples(
    generations: Sequence[Generation], mode: SampleDisplay, draw: Sequence[int]
) -> list[Generation]:
    """The completions that the dashboard is sent: all, best and worst of the step, or two drawn.

    The first of equals is best or worst. `draw` orders the rows at random.
    """
    if mode == "all" or not generations:
        return list(generations)
    if mode == "random":
        return [generations[index] for index in sorted(draw[:2])]
    ranked = [g for g in generations if g.reward is not None] or list(generations[:1])
    best = max(ranked, key=lambda g: g.reward or 0.0)
    worst = min(ranked, key=lambda g: g.reward or 0.0)
    return [best] if best is worst else [best, worst]
