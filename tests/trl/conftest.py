"""Both sides of every case: TRL's in one run of its own environment, ours when asked for."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from grpo_trainer.tensor_file import read_tensors

from .our_side import our_step
from .step_result import StepResult
from .trl_cases import KINDS, Case, advantage_cases, loss_cases, setting_cases
from .trl_differences import difference_cases
from .trl_environment import TRLUnavailable, run_in_trl
from .trl_inputs import Models, Rollouts, make_models, make_rollouts


@dataclass(frozen=True)
class Sides:
    """Steps of the project and of TRL."""

    inputs: dict[tuple[str, bool], tuple[Models, Rollouts]]
    """By architecture, and by whether reward functions abstain."""
    folder: Path

    def ours(self, case: Case) -> StepResult:
        return our_step(case, *self.inputs[case.kind, case.abstains])

    def theirs(self, case: Case) -> StepResult:
        found = json.loads((self.folder / f"{case}.json").read_text())
        return StepResult(gradients=read_tensors(self.folder / f"{case}.safetensors"), **found)


@pytest.fixture(scope="session")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Sides:
    """Fails, and never skips, when TRL cannot be had."""
    folder = tmp_path_factory.mktemp("trl")
    inputs: dict[tuple[str, bool], tuple[Models, Rollouts]] = {}
    for kind in KINDS:
        models = make_models(folder / kind, kind)
        for abstains in (False, True):
            inputs[kind, abstains] = models, make_rollouts(models, abstains=abstains)
    results = folder / "results"
    results.mkdir()
    told = [_told(case, *inputs[case.kind, case.abstains]) for case in _all_cases()]
    (folder / "cases.json").write_text(json.dumps(told))
    complaint = ""
    try:
        script = Path(__file__).with_name("trl_side.py")
        run_in_trl(script, folder / "cases.json", results)
    except TRLUnavailable as error:
        complaint = str(error)
    if complaint:  # outside of the handler, where the text would be shown twice
        pytest.fail(complaint, pytrace=False)
    return Sides(inputs, results)


def _all_cases() -> list[Case]:
    return [*loss_cases(), *setting_cases(), *advantage_cases(), *difference_cases()]


def _told(case: Case, models: Models, rollouts: Rollouts) -> dict[str, Any]:
    """What `trl_side` reads."""
    given: dict[str, Any] = {
        "prompt_ids": rollouts.prompt_ids,
        "completion_ids": [completion.token_ids for completion in rollouts.completions],
        "rewards": rollouts.rewards,
    }
    if case.corrects_mismatch:
        given["sampling_logprobs"] = [completion.logprobs for completion in rollouts.completions]
    return {
        "name": str(case),
        "start": str(models.sampler if case.off_policy else models.policy),
        "policy": str(models.policy),
        "reference": str(models.reference),
        "last_step": case.last_step,
        "corrects_mismatch": case.corrects_mismatch,
        "settings": case.trl_settings(),
        "rollouts": given,
    }
