"""Runs TRL's own trainer on given completions and writes the loss and gradients of one step.

Runs in the environment of `trl_environment`, where the project is not installed:
`python trl_side.py CASES.json FOLDER` writes NAME.safetensors (gradients by parameter name) and
NAME.json (loss, advantages, metrics) for each case.

Only sampling and the order of rows are replaced. Rewards, advantages, log-probs, loss, its scaling
for accumulation and the backward pass are `GRPOTrainer.train()`.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]
from datasets import Dataset  # type: ignore[import-not-found, unused-ignore]
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found, unused-ignore]
from trl.trainer import grpo_trainer  # type: ignore[import-not-found, unused-ignore]


class GivenCompletions(GRPOTrainer):  # type: ignore[misc, unused-ignore]
    """A trainer that samples nothing, and keeps the loss of each micro-batch."""

    rollouts: dict[str, Any]
    losses: list[float]

    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        rollouts = self.rollouts
        texts = [str(row) for row in range(len(prompts))]
        sampling = rollouts.get("sampling_logprobs")
        ids = rollouts["prompt_ids"], rollouts["completion_ids"]
        return *ids, None, texts, sampling, {}, None, [[] for _ in prompts]

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        loss = super().compute_loss(*arguments, **named)
        self.losses.append(loss.item())
        return loss


class Watch(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Moves the weights to those of the policy, and takes the gradients of the last step."""

    def __init__(self, trainer: GivenCompletions, last_step: int, policy: dict[str, Any]) -> None:
        self.trainer, self.last_step, self.policy = trainer, last_step, policy
        self.gradients: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.trainer.losses.clear()
        if state.global_step == self.last_step - 1 > 0:
            load(self.trainer.model, self.policy)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.global_step == self.last_step - 1:
            named_weights = self.trainer.model.named_parameters()
            self.gradients = {name: weight.grad.clone() for name, weight in named_weights}
            values = self.trainer._metrics["train"].items()
            self.metrics = {name: sum(found) / len(found) for name, found in values if found}


def load(model: Any, weights: dict[str, Any]) -> None:
    """Puts `weights` into the model; with tied embeddings the head is not among them."""
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}


def reward_function(name: str, values: list[float | None]) -> Any:
    """One that gives `values`, whatever the completions are."""

    def reward(completions: list[str], **columns: Any) -> list[float | None]:
        return [values[int(text)] for text in completions]

    reward.__name__ = name
    return reward


def trainer_of(case: dict[str, Any], output: str) -> GivenCompletions:
    """A trainer on the CPU in float32 that takes one or two steps without moving the weights."""
    rollouts = case["rollouts"]
    rows, size = len(rollouts["completion_ids"]), case["settings"]["num_generations"]
    settings = GRPOConfig(
        output_dir=output,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        learning_rate=0.0,
        max_grad_norm=0.0,
        max_steps=case["last_step"],
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        shuffle_dataset=False,
        **case["settings"],
    )
    trainer = GivenCompletions(
        model=case["start"],
        reward_funcs=[reward_function(*pair) for pair in rollouts["rewards"].items()],
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": [str(row) for row in range(rows // size)]}),
    )
    trainer.rollouts, trainer.losses = rollouts, []
    if trainer.ref_model is not None:
        load(trainer.ref_model, load_file(Path(case["reference"]) / "model.safetensors"))
    # Log-probs of the sampler are known and corrected for only with vLLM, which samples elsewhere.
    trainer.use_vllm = case["corrects_mismatch"]
    return trainer


def run(case: dict[str, Any], folder: Path) -> None:
    """Trains and writes what was found."""
    with tempfile.TemporaryDirectory() as output:
        trainer = trainer_of(case, output)
        policy = load_file(Path(case["policy"]) / "model.safetensors")
        watch = Watch(trainer, case["last_step"], policy)
        trainer.add_callback(watch)
        trainer.train()
    found = {
        "loss": sum(trainer.losses),
        "micro_batches": len(trainer.losses),
        "advantages": list(trainer._logs["advantages"]),
        "metrics": watch.metrics,
    }
    save_file(watch.gradients, folder / f"{case['name']}.safetensors")
    (folder / f"{case['name']}.json").write_text(json.dumps(found))


def main() -> None:
    """Runs every case of the file."""
    torch.set_num_threads(1)
    # It would mix the groups of a generation batch, and the order is to be the same on both sides.
    grpo_trainer.shuffle_sequence_dict = lambda batch: batch
    cases, folder = Path(sys.argv[1]), Path(sys.argv[2])
    for case in json.loads(cases.read_text()):
        run(case, folder)


if __name__ == "__main__":
    main()
