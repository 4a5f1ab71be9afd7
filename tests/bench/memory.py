"""How much memory does a training step need when the vocabulary is large?

    python tests/bench/memory.py [--kind lora] [--checkpointing]

A random model with hidden size 64, two layers and 151,936 tokens learns from 8 rows of 512 prompt
tokens and 512 or 1024 completion tokens. The bars, with `logits` one float32 tensor
[rows, completion, vocabulary]: the peak of the step stays below half of it, is not higher in
micro-batches of one row, and grows by less than a tenth when the completion doubles. Prints a line
for each run and exits 1 when a bar is missed. Takes minutes on a CPU.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from grpo_protocol.settings.model import FineTuneType

if TYPE_CHECKING:
    from grpo_protocol import GRPOConfig
    from grpo_trainer.learner import Learner

ROWS, PROMPT, VOCABULARY = 8, 512, 151_936


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=["lora", "dora", "full"], default="lora")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--one", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        tokens, micro_batch = options.one
        peak, seconds = measure(tokens, micro_batch, options.kind, options.checkpointing)
        print(json.dumps([peak, seconds]))
        return 0
    print("kind  completion  micro-batch  peak GB  share of logits  seconds")
    peaks = {}
    for tokens, micro_batch in [(512, ROWS), (512, 1), (1024, ROWS)]:
        peak, seconds = _in_own_process(tokens, micro_batch)
        peaks[tokens, micro_batch] = peak
        print(
            f"{options.kind:4}  {tokens:10}  {micro_batch:11}  {peak / 1e9:7.2f}"
            f"  {peak / logits(tokens):15.2f}  {seconds:7.1f}",
            flush=True,
        )
    bars = {
        "below half of the logits": peaks[512, ROWS] <= logits(512) / 2,
        "no higher in micro-batches of one": peaks[512, 1] <= peaks[512, ROWS],
        "grows by less than a tenth": peaks[1024, ROWS] < 1.1 * peaks[512, ROWS],
    }
    for bar, holds in bars.items():
        print(f"{bar}: {'holds' if holds else 'MISSED'}")
    return 0 if all(bars.values()) else 1


def logits(tokens: int) -> int:
    """Bytes of the tensor that is never made."""
    return 4 * ROWS * tokens * VOCABULARY


def _in_own_process(tokens: int, micro_batch: int) -> tuple[int, float]:
    """What one run leaves in caches would count for the next."""
    words = [sys.executable, *sys.argv, "--one", str(tokens), str(micro_batch)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE)
    peak, seconds = json.loads(done.stdout.splitlines()[-1])
    return peak, seconds


def measure(
    tokens: int, micro_batch: int, kind: FineTuneType, checkpointing: bool
) -> tuple[int, float]:
    """Peak bytes and seconds of one step."""
    import grpo_trainer  # noqa: F401, I001 - loads a fast BLAS before mlx comes
    import mlx.core as mx

    from grpo_trainer.training_rows import TrainingRow

    learner, config = make_learner(kind, gradient_checkpointing=checkpointing)
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
    return mx.get_peak_memory(), time.monotonic() - start


def make_learner(kind: FineTuneType, **settings: Any) -> tuple["Learner", "GRPOConfig"]:
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
    config = GRPOConfig(fine_tune_type=kind, temperature=1.0, **settings)
    if kind != "full":
        model.freeze()
        adapters = {"rank": 8, "scale": 20.0, "dropout": 0.0}
        linear_to_lora_layers(model, 2, adapters, use_dora=kind == "dora")
    policy = Policy(model, None, kind, None, model.trainable_parameters())  # type: ignore[arg-type]
    policy.adopt(policy.weights)
    return Learner(policy, config), config


if __name__ == "__main__":
    sys.exit(main())
