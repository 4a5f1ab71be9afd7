"""The demo task: add two two-digit numbers, showing the work.

A prompt is `47+38=?` and a perfect completion adds the ones, then the tens with the carry::

    <think>7+8=15 4+3+1=8</think><answer>85</answer>

The 8100 ordered pairs of 10..99 are cut into three parts by a hash of the unordered pair, so that a
problem and its mirror image (`38+47`) always lie in the same part: the warm start learns from one
part, GRPO trains on the second, the third is held out for evaluation. No prompt is in two parts.
"""

import hashlib
import random
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias, TypedDict

from grpo_trainer.rewards.batch import completion_texts

EVALUATION_ROWS = 200
CARRY_SHARE = 0.75
"""Three prompts in four need a carry, which is the step that the warm-started model gets wrong."""

ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


class Problem(NamedTuple):
    """Two numbers of two digits each."""

    a: int
    b: int

    @property
    def total(self) -> int:
        """The right answer."""
        return self.a + self.b

    @property
    def carries(self) -> bool:
        """Whether the sum of the ones needs a carry."""
        return self.a % 10 + self.b % 10 >= 10


class Message(TypedDict):
    """One chat message."""

    role: str
    content: str


Completions: TypeAlias = Sequence[str | Sequence[Mapping[str, str]]]
"""Texts, or lists of one assistant message, as reward functions are given them."""


class Row(TypedDict):
    """One row of a dataset: a prompt and the answer that the rewards compare with."""

    prompt: list[Message]
    answer: str


class Split(StrEnum):
    """The three disjoint parts of the problem space."""

    WARM_START = "warm_start"
    TRAINING = "training"
    EVALUATION = "evaluation"


def split_of(problem: Problem) -> Split:
    """The part that owns a problem: 40 % warm start, 40 % training, 20 % evaluation."""
    low, high = sorted(problem)
    bucket = hashlib.sha256(f"{low}+{high}".encode()).digest()[0] % 5
    if bucket == 0:
        return Split.EVALUATION
    return Split.TRAINING if bucket <= 2 else Split.WARM_START


def problems_of(split: Split) -> list[Problem]:
    """Every problem of one part, in a fixed order."""
    pairs = (Problem(a, b) for a in range(10, 100) for b in range(10, 100))
    return [problem for problem in pairs if split_of(problem) is split]


def draw(split: Split, count: int, seed: int) -> list[Problem]:
    """`count` problems, `CARRY_SHARE` of them with a carry; none twice before all were used."""
    rng = random.Random(f"{split}:{seed}")
    problems = problems_of(split)
    with_carry = round(count * CARRY_SHARE)
    drawn = _deal([p for p in problems if p.carries], with_carry, rng)
    drawn += _deal([p for p in problems if not p.carries], count - with_carry, rng)
    rng.shuffle(drawn)
    return drawn


def _deal(deck: Sequence[Problem], count: int, rng: random.Random) -> list[Problem]:
    """`count` cards from a shuffled deck, which is shuffled anew whenever it runs out."""
    dealt: list[Problem] = []
    while len(dealt) < count:
        dealt += rng.sample(deck, min(len(deck), count - len(dealt)))
    return dealt


def to_row(problem: Problem) -> Row:
    """The dataset row of a problem."""
    prompt: list[Message] = [{"role": "user", "content": question(problem)}]
    return {"prompt": prompt, "answer": str(problem.total)}


def training_rows(count: int, seed: int = 0) -> list[Row]:
    """Rows for GRPO."""
    return [to_row(problem) for problem in draw(Split.TRAINING, count, seed)]


def evaluation_rows(count: int = EVALUATION_ROWS) -> list[Row]:
    """The held-out rows: always the same, whatever the seed of the run, so that runs compare."""
    return [to_row(problem) for problem in draw(Split.EVALUATION, count, seed=0)]


def question(problem: Problem) -> str:
    """The text of the user message. All questions have the same length in tokens."""
    return f"{problem.a}+{problem.b}=?"


def written(steps: str, answer: str) -> str:
    """A completion in the required form."""
    return f"{THINK_OPEN}{steps}{THINK_CLOSE}{ANSWER_OPEN}{answer}{ANSWER_CLOSE}"


def work(problem: Problem, carry: bool, ones: int, tens: int) -> str:
    """The two lines of a written addition, side by side."""
    a, b = problem
    return f"{a % 10}+{b % 10}={ones} {a // 10}+{b // 10}{'+1' if carry else ''}={tens}"


def solution(problem: Problem) -> str:
    """A perfect completion."""
    ones = problem.a % 10 + problem.b % 10
    steps = work(problem, problem.carries, ones, problem.total // 10)
    return written(steps, str(problem.total))


def extract_answer(completion: str) -> str | None:
    """The text inside the only `<answer>` block; None when there is none or more than one."""
    if completion.count(ANSWER_OPEN) != 1 or completion.count(ANSWER_CLOSE) != 1:
        return None
    _, _, rest = completion.partition(ANSWER_OPEN)
    inside, closed, _ = rest.partition(ANSWER_CLOSE)
    return inside.strip() if closed else None


def correctness(completions: Completions, answer: Sequence[str], **kwargs: object) -> list[float]:
    """1.0 where the answer block holds exactly the expected digits, else 0.0."""
    pairs = zip(completion_texts(completions), answer, strict=True)
    return [float(extract_answer(text) == expected) for text, expected in pairs]


def form(completions: Completions, **kwargs: object) -> list[float]:
    """1.0 for work inside think tags followed by an answer and nothing else, else 0.0."""
    return [float(_well_formed(text.strip())) for text in completion_texts(completions)]


def _well_formed(text: str) -> bool:
    tags = (THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)
    if any(text.count(tag) != 1 for tag in tags):
        return False
    if not (text.startswith(THINK_OPEN) and text.endswith(ANSWER_CLOSE)):
        return False
    inside = text[len(THINK_OPEN) : -len(ANSWER_CLOSE)]
    steps, border, answer = inside.partition(THINK_CLOSE + ANSWER_OPEN)
    return bool(border and steps.strip() and answer.strip())
