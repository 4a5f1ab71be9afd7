"""How much memory does a training step need when the vocabulary is large?

    python tests/bench/memory.py [--tokens 512 1024] [--micro-batch 8] [--kind lora]

A random model with hidden size 64, two layers and 151,936 tokens learns from 8 rows of 512 prompt
tokens and so many completion tokens. The bar: the peak of the step stays below half of one float32
tensor [rows, completion, vocabulary], which is what the logits alone would take. Prints a line for
each length and exits 1 when one misses the bar. Takes minutes on a CPU.
"""

import argparse
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from grpo_protocol.settings.model import FineTuneType

if TYPE_CHECKING:
    from grpo_protocol import GRPOConfig
    from grpo_trainer.learner import Learner

ROWS, PROMPT, VOCABULARY = 8, 512, 151_936


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--micro-batch", type=int, default=ROWS)
    parser.add_argument("--kind", choices=["lora", "full"], default="lora")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return 0 if measure(options.one, options.micro_batch, options.kind) else 1
    print("kind  tokens  micro-batch  peak GB  logits GB  share  seconds  bar")
    # Each in a process of its own: what one leaves in caches would count for the next.
    options_of_all = ["--micro-batch", str(options.micro_batch), "--kind", options.kind]
    runs = [[sys.executable, __file__, "--one", str(n), *options_of_all] for n in options.tokens]
    return max([subprocess.run(words, check=False).returncode for words in runs])


def measure(tokens: int, micro_batch: int, kind: FineTuneType) -> bool:
    """Takes one step, prints its line, and tells whether it holds the bar."""
    import grpo_trainer  # noqa: F401, I001 - loads a fast BLAS before mlx comes
    import mlx.core as mx

    from grpo_trainer.training_rows import TrainingRow

    learner, config = make_learner(kind)
    draw = random.Random(0)
    rows = [
        TrainingRow(
            [draw.randrange(VOCABULARY) for _ in range(PROMPT)],
            [draw.randrange(VOCABULARY) for _ in range(tokens)],
            advantage=(-1.0) ** row,
        )
        for row in range(ROWS)
    ]
    mx.clear_cache()
    mx.reset_peak_memory()
    start = time.monotonic()
    learner.update([rows[i : i + micro_batch] for i in range(0, ROWS, micro_batch)], config, 1)
    seconds = time.monotonic() - start
    peak, logits = mx.get_peak_memory(), 4 * ROWS * tokens * VOCABULARY
    holds = peak <= logits / 2
    print(
        f"{kind:4}  {tokens:6}  {micro_batch:11}  {peak / 1e9:7.2f}  {logits / 1e9:9.2f}"
        f"  {peak / logits:5.2f}  {seconds:7.1f}  {'holds' if holds else 'MISSED'}",
        flush=True,
    )
    return holds


def make_learner(kind: FineTuneType) -> tuple["Learner", "GRPOConfig"]:
    """A learner over random weights, and its settings."""
    import mlx.core as mx
    from mlx_lm.models import qwen3
    from mlx_lm.tuner.utils import linear_to_lora_layers

    from grpo_protocol import GRPOConfig
    from grpo_trainer.learner import Learner
    from grpo_trainer.policy import Policy

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    rest = {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "max_position_embeddings": 4096}
    names = {"model_type": "qwen3", "vocab_size": VOCABULARY}
    mx.random.seed(0)
    model = qwen3.Model(qwen3.ModelArgs.from_dict({**names, **sizes, **heads, **rest}))
    mx.eval(model.parameters())
    config = GRPOConfig(fine_tune_type=kind, temperature=1.0)
    if kind == "lora":
        model.freeze()
        linear_to_lora_layers(model, 2, {"rank": 8, "scale": 20.0, "dropout": 0.0})
    policy = Policy(model, None, kind, None, model.trainable_parameters())  # type: ignore[arg-type]
    policy.adopt(policy.weights)
    return Learner(policy, config), config


if __name__ == "__main__":
    sys.exit(main())
