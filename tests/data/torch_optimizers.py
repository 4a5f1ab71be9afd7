"""Writes torch_optimizers.json: weights that torch's optimizers reach in ten steps.

Runs as `PYTHON tests/data/torch_optimizers.py` with the interpreter of an environment that has
`torch.optim.Muon`, such as the one that `pytest -m trl` makes; the tests only read the file.

Each case holds the settings of `GRPOConfig`, the learning rate of each step, and the weights after
the first and the last step. All cases start from the same `weights` and get the same `gradients`.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found, unused-ignore]

STEPS = 10
SHAPES = {"vector": (5,), "wide": (3, 4), "tall": (6, 2), "stack": (2, 3, 4)}
MATRICES = ("wide", "tall")
CONSTANT = [1e-2] * STEPS
WARM_UP_AND_DECAY = [1e-2 * share for share in (0.25, 0.5, 0.75, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.1)]

CASES: list[tuple[str, list[float], dict[str, Any]]] = [
    ("adamw", CONSTANT, {"weight_decay": 0.0}),
    ("adamw", CONSTANT, {"weight_decay": 0.1}),
    ("adamw", [0.1] * STEPS, {"weight_decay": 0.01}),
    (
        "adamw",
        WARM_UP_AND_DECAY,
        {"weight_decay": 0.5, "adamw_beta1": 0.8, "adamw_beta2": 0.95, "adamw_eps": 1e-3},
    ),
    ("adamw", CONSTANT, {"weight_decay": 0.0, "adamw_beta1": 0.0, "adamw_beta2": 0.0}),
    ("sgd", CONSTANT, {"weight_decay": 0.0}),
    ("sgd", WARM_UP_AND_DECAY, {"weight_decay": 0.0, "sgd_momentum": 0.9}),
    ("adafactor", CONSTANT, {"weight_decay": 0.0}),
    ("adafactor", WARM_UP_AND_DECAY, {"weight_decay": 0.5}),
    ("muon", CONSTANT, {"weight_decay": 0.0}),
    ("muon", WARM_UP_AND_DECAY, {"weight_decay": 0.5, "muon_momentum": 0.8}),
]


def adamw(weights: list[Any], settings: dict[str, Any]) -> Any:
    return torch.optim.AdamW(
        weights,
        betas=(settings.get("adamw_beta1", 0.9), settings.get("adamw_beta2", 0.999)),
        eps=settings.get("adamw_eps", 1e-8),
        weight_decay=settings["weight_decay"],
    )


def sgd(weights: list[Any], settings: dict[str, Any]) -> Any:
    return torch.optim.SGD(weights, momentum=settings.get("sgd_momentum", 0.0))


def adafactor(weights: list[Any], settings: dict[str, Any]) -> Any:
    # The rate is scaled by the size of the weights, but never by less than the second eps: with 1
    # it is not scaled, as the weights are smaller. torch squares the first eps.
    return torch.optim.Adafactor(weights, eps=(1e-15, 1.0), weight_decay=settings["weight_decay"])


def muon(weights: list[Any], settings: dict[str, Any]) -> Any:
    return torch.optim.Muon(
        weights,
        momentum=settings.get("muon_momentum", 0.95),
        weight_decay=settings["weight_decay"],
        adjust_lr_fn="match_rms_adamw",
    )


MAKERS: dict[str, Callable[[list[Any], dict[str, Any]], Any]] = {
    "adamw": adamw,
    "sgd": sgd,
    "adafactor": adafactor,
    "muon": muon,
}


def run_case(
    kind: str,
    rates: list[float],
    settings: dict[str, Any],
    start: dict[str, Any],
    gradients: dict[str, Any],
) -> dict[str, Any]:
    """The case with its weights after the first and the last step."""
    names = MATRICES if kind == "muon" else tuple(start)
    weights = {name: torch.nn.Parameter(start[name].clone()) for name in names}
    optimizer = MAKERS[kind](list(weights.values()), settings)
    reached = []
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        for name, weight in weights.items():
            weight.grad = gradients[name][step].clone()
        optimizer.step()
        reached.append({name: weight.detach().tolist() for name, weight in weights.items()})
    return {
        "settings": {"optimizer_type": kind, **settings},
        "rates": rates,
        "first": reached[0],
        "last": reached[-1],
    }


def main() -> None:
    torch.manual_seed(0)
    # torch orthogonalizes in bfloat16, whose error would hide any of ours.
    torch.Tensor.bfloat16 = lambda self: self.clone()
    start = {name: 0.3 * torch.randn(shape) for name, shape in SHAPES.items()}
    # Directions that last for some steps, so that moments matter.
    gradients = {
        name: torch.randn(shape) + 0.5 * torch.randn((STEPS, *shape))
        for name, shape in SHAPES.items()
    }
    found = {
        "weights": {name: value.tolist() for name, value in start.items()},
        "gradients": {name: value.tolist() for name, value in gradients.items()},
        "cases": [run_case(*case, start, gradients) for case in CASES],
    }
    path = Path(__file__).with_suffix(".json")
    text = json.dumps(rounded(found), indent=1)
    # Each row of numbers on one line.
    text = re.sub(r"\[([^][{}]*)\]", lambda row: f"[{' '.join(row[1].split())}]", text)
    path.write_text(text + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Numbers with the nine digits that tell any two float32 apart."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return value


if __name__ == "__main__":
    main()
