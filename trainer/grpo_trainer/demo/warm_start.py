"""Builds `model/`: trains the demo's tiny Qwen3 model on worked sums that are often wrong.

    OPENBLAS_NUM_THREADS=1 python -m grpo_trainer.demo.warm_start [--output FOLDER] [--seed N]

The model learns like a pupil with sloppy notes: most examples that need a carry leave it out, some
sums are off by one, some answers lack their tags. So it knows how an answer is written and has seen
the carry, but seldom uses it, which leaves GRPO something real to improve. The prompts come from a
part of the problem space that neither GRPO training nor evaluation uses.

Takes two to three minutes. One BLAS thread is as fast as two on matrices this small, and keeps the
result independent of the number of cores: the same seed, kind of CPU and library versions give the
same files, byte for byte.
"""

import argparse
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

from grpo_trainer import blas
from grpo_trainer.demo import task, tokenizer

blas.load()  # has to come before mlx

import mlx.core as mx  # noqa: E402
import mlx.optimizers as optim  # noqa: E402
from mlx.nn import losses  # noqa: E402
from mlx.nn.utils import value_and_grad  # noqa: E402
from mlx_lm.models.qwen3 import Model, ModelArgs  # noqa: E402

from grpo_trainer.trees import leaves  # noqa: E402

MODEL_FOLDER = Path(__file__).parent / "model"


@dataclass(frozen=True)
class Recipe:
    """How sloppy the examples are and how long the model studies them."""

    forgotten_carry: float = 0.85
    """Share of the sums with a carry that leave it out."""
    slip: float = 0.06
    """Chance, for the ones and for the tens, that their sum is off by one."""
    missing_tags: float = 0.3
    """Share of the answers that stand bare behind the work."""
    steps: int = 1000
    batch_size: int = 64
    learning_rate: float = 2e-3
    warmup_steps: int = 50


def build(folder: Path, seed: int, recipe: Recipe) -> None:
    """Makes the whole model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = tokenizer.save(folder)
    mx.random.seed(seed)
    config = model_config(encoder)
    model = Model(ModelArgs.from_dict(config))
    train(model, encoder, recipe, seed)
    save(model, config, folder)


def model_config(encoder: Tokenizer) -> dict[str, object]:
    """What `config.json` holds: 0.36 million parameters."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "eos_token_id": encoder.get_vocab()[tokenizer.END],
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 128,
        "intermediate_size": 256,
        "max_position_embeddings": tokenizer.MAX_LENGTH,
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


def train(model: Model, encoder: Tokenizer, recipe: Recipe, seed: int) -> None:
    """Supervised learning with a linear warm-up and a cosine decay to zero."""
    rise = optim.linear_schedule(0.0, recipe.learning_rate, recipe.warmup_steps)
    fall = optim.cosine_decay(recipe.learning_rate, recipe.steps - recipe.warmup_steps)
    schedule = optim.join_schedules([rise, fall], [recipe.warmup_steps])
    optimizer = optim.AdamW(schedule, weight_decay=0.01, bias_correction=True)
    loss_and_gradient = value_and_grad(model, cross_entropy)
    for step, (ids_B_T, mask_B_T) in enumerate(batches(encoder, recipe, seed), start=1):
        loss, gradient = loss_and_gradient(model, ids_B_T, mask_B_T)
        gradient, _ = optim.clip_grad_norm(gradient, 1.0)
        optimizer.update(model, gradient)
        mx.eval(loss, model.parameters(), optimizer.state)
        if step % 100 == 0 or step == recipe.steps:
            print(f"step {step}/{recipe.steps}  loss {loss.item():.4f}", flush=True)


def cross_entropy(model: Model, ids_B_T: mx.array, mask_B_T: mx.array) -> mx.array:
    """Mean loss over the tokens of the completions."""
    loss_B_T = losses.cross_entropy(model(ids_B_T[:, :-1]), ids_B_T[:, 1:])
    return (loss_B_T * mask_B_T).sum() / mask_B_T.sum()


def batches(encoder: Tokenizer, recipe: Recipe, seed: int) -> Iterator[tuple[mx.array, mx.array]]:
    """Ids and the mask of the targets that count, one batch for each step."""
    rng = random.Random(seed)
    problems = task.problems_of(task.Split.WARM_START)
    pad = encoder.get_vocab()[tokenizer.END_OF_TEXT]
    for _ in range(recipe.steps):
        drawn = rng.choices(problems, k=recipe.batch_size)
        examples = [encode(encoder, p, sloppy_solution(p, recipe, rng)) for p in drawn]
        yield collate(examples, pad)


def encode(encoder: Tokenizer, problem: task.Problem, completion: str) -> tuple[list[int], int]:
    """The ids of a whole conversation, and how many of them are the prompt."""
    prompt_ids: list[int] = encoder.encode(tokenizer.prompt_text(task.question(problem))).ids
    completion_ids: list[int] = encoder.encode(completion + tokenizer.END).ids
    return prompt_ids + completion_ids, len(prompt_ids)


def collate(examples: Sequence[tuple[list[int], int]], pad: int) -> tuple[mx.array, mx.array]:
    """Stacks examples, padded on the right. Only completions and their end are learned."""
    length = max(len(ids) for ids, _ in examples)
    ids_B_T = [ids + [pad] * (length - len(ids)) for ids, _ in examples]
    mask_B_T = [[start <= t < len(ids) for t in range(1, length)] for ids, start in examples]
    return mx.array(ids_B_T), mx.array(mask_B_T, dtype=mx.float32)


def sloppy_solution(problem: task.Problem, recipe: Recipe, rng: random.Random) -> str:
    """One worked example. A mistake in the work goes on into the answer."""
    a, b = problem
    carry = problem.carries and rng.random() >= recipe.forgotten_carry
    ones = a % 10 + b % 10 + _slip(recipe, rng)
    tens = a // 10 + b // 10 + carry + _slip(recipe, rng)
    work = task.work(problem, carry, ones, tens)
    answer = str(tens * 10 + ones % 10)
    if rng.random() < recipe.missing_tags:
        return f"{task.THINK_OPEN}{work}{task.THINK_CLOSE}{answer}"
    return task.written(work, answer)


def _slip(recipe: Recipe, rng: random.Random) -> int:
    return rng.choice((-1, 1)) if rng.random() < recipe.slip else 0


def save(model: Model, config: dict[str, object], folder: Path) -> None:
    """Writes the weights and configurations; the tokenizer is there already."""
    weights = dict(sorted(leaves(model.parameters())))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    generation = {"do_sample": True, "eos_token_id": config["eos_token_id"], "temperature": 1.0}
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        text = json.dumps(content, indent=2, sort_keys=True) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def main() -> None:
    """Reads the command line and builds."""
    parser = argparse.ArgumentParser(description="Build the demo's warm-started model.")
    parser.add_argument("--output", type=Path, default=MODEL_FOLDER, help="folder to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and examples")
    options = parser.parse_args()
    recipe = Recipe()
    print(f"building {options.output} with {asdict(recipe)}", flush=True)
    build(options.output, options.seed, recipe)


if __name__ == "__main__":
    main()
