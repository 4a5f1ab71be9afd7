"""What both sides are given: models, completions, rewards."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from grpo_protocol import GRPOConfig
from grpo_trainer.learner import Learner
from grpo_trainer.policy import load_policy
from grpo_trainer.rollout import Completion
from grpo_trainer.tensor_file import read_tensors, write_tensors
from grpo_trainer.training_rows import TrainingRow
from tiny_model import EOS_ID, Kind, make_model

from .trl_cases import GROUP_SIZE, MAX_COMPLETION_LENGTH, PROMPTS, Case

_ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
_NOISE = {"sampler": 0.05, "reference": 0.08}
"""How far their weights are from the policy's, as a share of each tensor's magnitude."""
_ROUNDING = 0.2
"""By how many nats a sampler that computes less exactly is off, as a standard deviation."""
_CUT_OFF = (2, 7, 13)
"""Rows that reach the length limit."""


@dataclass(frozen=True)
class Models:
    """The folders of one architecture with three sets of weights."""

    policy: Path
    sampler: Path
    reference: Path


@dataclass(frozen=True)
class Rollouts:
    """Rows of `PROMPTS` groups, and what two reward functions say of them."""

    prompt_ids: list[list[int]]
    completions: list[Completion]
    rewards: dict[str, list[float | None]]


def make_models(folder: Path, kind: Kind) -> Models:
    """Folders that mlx-lm and transformers both load."""
    generator = np.random.default_rng(1)
    policy = make_model(folder / "policy", kind)
    config = json.loads((policy / "config.json").read_text())
    config["architectures"] = [_ARCHITECTURES[kind]]
    (policy / "config.json").write_text(json.dumps(config))
    weights = read_tensors(policy / "model.safetensors")
    for role, noise in _NOISE.items():
        shutil.copytree(policy, folder / role)
        moved = {name: _moved(weight, noise, generator) for name, weight in weights.items()}
        write_tensors(folder / role / "model.safetensors", moved)
    return Models(policy, folder / "sampler", folder / "reference")


def make_rollouts(models: Models, *, abstains: bool = False) -> Rollouts:
    """Random ids; prompts and completions of unlike lengths, some cut at the limit."""
    generator = np.random.default_rng(2)
    rows = PROMPTS * GROUP_SIZE
    prompts = [_ids(generator, 3 + 2 * prompt) for prompt in range(PROMPTS)]
    prompt_ids = [prompts[row // GROUP_SIZE] for row in range(rows)]
    completions = []
    for row in range(rows):
        ids = [*_ids(generator, int(generator.integers(0, 12))), EOS_ID]
        if row in _CUT_OFF:
            ids = _ids(generator, MAX_COMPLETION_LENGTH)
        completions.append(Completion(ids, "length" if row in _CUT_OFF else "stop"))
    quality: list[float | None] = [round(float(v), 2) for v in generator.normal(size=rows)]
    style: list[float | None] = [float(v) for v in generator.integers(0, 2, size=rows)]
    if abstains:
        quality[1] = style[4] = quality[5] = style[5] = None
        quality[8:12], style[8:12] = [0.5] * 4, [1.0] * 4
    return Rollouts(
        prompt_ids=prompt_ids,
        completions=_with_logprobs(models, prompt_ids, completions, generator),
        rewards={"quality": quality, "style": style},
    )


def _with_logprobs(
    models: Models,
    prompt_ids: list[list[int]],
    completions: list[Completion],
    generator: np.random.Generator,
) -> list[Completion]:
    """`completions` with the log-probs at temperature 1 that an inexact sampler reports."""
    settings = Case("", "qwen3", {"loss_type": "grpo"}).our_settings()
    config = GRPOConfig(model=str(models.sampler), **settings)
    learner = Learner(load_policy(config, lambda message: None), config)
    rows = [
        TrainingRow(prompt, completion.token_ids, 0.0)
        for prompt, completion in zip(prompt_ids, completions, strict=True)
    ]
    scored = learner.with_logprobs(rows, config)
    return [
        replace(
            completion,
            logprobs=[v + _ROUNDING * float(generator.normal()) for v in row.old_logprobs or []],
        )
        for completion, row in zip(completions, scored, strict=True)
    ]


def _moved(weight: mx.array, share: float, generator: np.random.Generator) -> mx.array:
    values = np.array(weight)
    scale = share * float(np.sqrt((values**2).mean()))
    return mx.array(values + scale * generator.normal(size=values.shape).astype(np.float32))


def _ids(generator: np.random.Generator, count: int) -> list[int]:
    return [int(value) for value in generator.integers(0, 256, size=count)]
