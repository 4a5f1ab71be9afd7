"""Builds ``model/``: trains the demo's tiny Qwen3 model on worked sums that are often wrong.

    python -m grpo_trainer.demo.warm_start [--output FOLDER] [--seed N]

It learns like a pupil with a sloppy teacher: of the examples that need a carry most leave it out,
some digits are off by one and some answers lack their tags. The model so knows how a sum is written
and has seen the carry, but seldom uses it, which leaves GRPO something real to improve. The prompts
come from a part of the problem space that neither GRPO training nor evaluation uses.

About TIME on two CPU cores with OpenBLAS. The same seed, library versions and number of
BLAS threads give the same file.
"""

import argparse
import ctypes
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

# mlx resolves its BLAS symbols when it is imported; OpenBLAS is 20 times faster than its own.
with suppress(OSError):
    ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
from mlx.utils import tree_flatten
from mlx_lm.models.qwen3 import Model, ModelArgs
from tokenizers import Tokenizer

from grpo_trainer.demo import task, tokenizer

MODEL_FOLDER = Path(__file__).parent / "model"


@dataclass(frozen=True)
class Recipe:
    """How sloppy the examples are and how long the model studies them."""

    forgotten_carry: float = 0.85
    """Share of the sums with a carry that leave it out."""
    slip: float = 0.1
    """Chance, for the ones and for the tens, that their sum is off by one."""
    missing_tags: float = 0.2
    """Share of the answers that stand bare behind the work."""
    steps: int = 1000
    batch_size: int = 64
    learning_rate: float = 2e-3
    warmup_steps: int = 50


RECIPE = Recipe()


def model_config(encoder: Tokenizer) -> dict[str, object]:
    """What ``config.json`` holds: about 0.36 million parameters."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "eos_token_id": encoder.token_to_id(tokenizer.END),
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 128,
        "intermediate_size": 256,
        "max_position_embeddings": 512,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "vocab_size": encoder.get_vocab_size(),
    }


def sloppy_solution(problem: task.Problem, recipe: Recipe, rng: random.Random) -> str:
    """One worked example, wrong in the ways that the recipe asks for, and wrong consistently."""
    a, b = problem
    carries = problem.carries and rng.random() >= recipe.forgotten_carry
    ones = a % 10 + b % 10 + _slip(recipe, rng)
    tens = a // 10 + b // 10 + carries + _slip(recipe, rng)
    carry = "+1" if carries else ""
    work = f"{a % 10}+{b % 10}={ones} {a // 10}+{b // 10}{carry}={tens}"
    answer = str(tens * 10 + ones % 10)
    if rng.random() < recipe.missing_tags:
        return f"{task.THINK_OPEN}{work}{task.THINK_CLOSE}{answer}"
    return task.written(work, answer)


def _slip(recipe: Recipe, rng: random.Random) -> int:
    return rng.choice((-1, 1)) if rng.random() < recipe.slip else 0


def encode_example(
    encoder: Tokenizer, problem: task.Problem, completion: str
) -> tuple[list[int], int]:
    """The ids of a whole conversation, and how many of them are the prompt."""
    prompt = (
        f"{tokenizer.START}user\n{task.question(problem)}{tokenizer.END}\n"
        f"{tokenizer.START}assistant\n"
    )
    prompt_ids: list[int] = encoder.encode(prompt).ids
    completion_ids: list[int] = encoder.encode(completion + tokenizer.END).ids
    return prompt_ids + completion_ids, len(prompt_ids)


def batches(encoder: Tokenizer, recipe: Recipe, seed: int) -> Iterator[tuple[mx.array, mx.array]]:
    """Right-padded ids and the mask of the targets that count, one batch per training step."""
    rng = random.Random(seed)
    problems = task.problems_of(task.Split.WARM_START)
    pad = encoder.token_to_id(tokenizer.END_OF_TEXT)
    for _ in range(recipe.steps):
        drawn = rng.choices(problems, k=recipe.batch_size)
        examples = [encode_example(encoder, p, sloppy_solution(p, recipe, rng)) for p in drawn]
        yield collate(examples, pad)


def collate(examples: Sequence[tuple[list[int], int]], pad: int) -> tuple[mx.array, mx.array]:
    """Stack examples of different lengths; only completion tokens are learned."""
    length = max(len(ids) for ids, _ in examples)
    ids_B_T = [ids + [pad] * (length - len(ids)) for ids, _ in examples]
    mask_B_T = [[start <= t < len(ids) for t in range(1, length)] for ids, start in examples]
    return mx.array(ids_B_T), mx.array(mask_B_T, dtype=mx.float32)


def cross_entropy(model: Model, ids_B_T: mx.array, mask_B_T: mx.array) -> mx.array:
    """Mean loss over the tokens of the completions."""
    losses = nn.losses.cross_entropy(model(ids_B_T[:, :-1]), ids_B_T[:, 1:])
    return (losses * mask_B_T).sum() / mask_B_T.sum()


def train(model: Model, encoder: Tokenizer, recipe: Recipe, seed: int) -> None:
    """Supervised learning with a linear warm-up and a cosine decay to zero."""
    rise = optim.linear_schedule(0.0, recipe.learning_rate, recipe.warmup_steps)
    fall = optim.cosine_decay(recipe.learning_rate, recipe.steps - recipe.warmup_steps)
    schedule = optim.join_schedules([rise, fall], [recipe.warmup_steps])
    optimizer = optim.AdamW(schedule, weight_decay=0.01, bias_correction=True)
    loss_and_gradient = nn.value_and_grad(model, cross_entropy)
    for step, (ids_B_T, mask_B_T) in enumerate(batches(encoder, recipe, seed), start=1):
        loss, gradient = loss_and_gradient(model, ids_B_T, mask_B_T)
        gradient, _ = optim.clip_grad_norm(gradient, 1.0)
        optimizer.update(model, gradient)
        mx.eval(loss, model.parameters(), optimizer.state)
        if step % 100 == 0 or step == recipe.steps:
            print(f"step {step}/{recipe.steps}  loss {loss.item():.4f}", flush=True)


def save(model: Model, config: dict[str, object], folder: Path) -> None:
    """Write the weights and configurations; the tokenizer is there already."""
    weights = dict(sorted(tree_flatten(model.parameters())))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    generation = {"eos_token_id": config["eos_token_id"], "do_sample": True, "temperature": 1.0}
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def build(folder: Path, seed: int, recipe: Recipe = RECIPE) -> None:
    """Make the whole model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = tokenizer.save(folder)
    mx.random.seed(seed)
    config = model_config(encoder)
    model = Model(ModelArgs.from_dict(config))
    train(model, encoder, recipe, seed)
    save(model, config, folder)


def main() -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description="Build the demo's warm-started model.")
    parser.add_argument("--output", type=Path, default=MODEL_FOLDER, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and examples")
    options = parser.parse_args()
    print(f"recipe: {asdict(RECIPE)}")
    build(options.output, options.seed)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
