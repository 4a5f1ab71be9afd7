"""Writes the sums: `python make_data.py FOLDER` makes train.jsonl and held_out.jsonl there.

Every ordered pair of two-digit numbers is asked once; 256 of them, drawn at random, are held out.
Two worked examples come before each question, so that the model knows the form from the start.
"""

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

HELD_OUT = 256
EXAMPLES = ((12, 31), (47, 25))


def question(first: int, second: int) -> dict[str, str]:
    return {"role": "user", "content": f"What is {first} + {second}?"}


def answer(first: int, second: int) -> dict[str, str]:
    return {"role": "assistant", "content": f"<answer>{first + second}</answer>"}


def row(first: int, second: int) -> str:
    worked = [message for pair in EXAMPLES for message in (question(*pair), answer(*pair))]
    prompt = [*worked, question(first, second)]
    return json.dumps({"prompt": prompt, "answer": str(first + second)})


def write(path: Path, pairs: Sequence[tuple[int, int]]) -> None:
    path.write_text("".join(row(*pair) + "\n" for pair in pairs), encoding="utf-8")
    print(f"{path}: {len(pairs)} sums")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    numbers = range(10, 100)
    pairs = [(a, b) for a in numbers for b in numbers if (a, b) not in EXAMPLES]
    random.Random(0).shuffle(pairs)
    write(folder / "held_out.jsonl", pairs[:HELD_OUT])
    write(folder / "train.jsonl", pairs[HELD_OUT:])


if __name__ == "__main__":
    main()
