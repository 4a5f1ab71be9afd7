"""The optimizers that move float32 weights: AdamW, SGD, Adafactor and Muon.

`learning_rate` and `weight_decay` mean the same in all of them. The decay is decoupled from the
gradient, as in AdamW: each step multiplies a weight by 1 - learning_rate · weight_decay. An
adaptive step is about as large as AdamW's, so one default rate serves AdamW, Adafactor and Muon.
"""

import math
import re
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
from mlx.utils import tree_unflatten

from grpo_protocol.config import GRPOConfig
from grpo_trainer.learning_rate import learning_rate_of
from grpo_trainer.trees import ParameterTree, leaves

_MATRIX_NAME = re.compile(r"\.\d+\.(.*\.)?(weight|lora_a|lora_b)$")
"""A weight in a numbered layer; embeddings and the head stand outside the layers."""
_NO_MATRIX = re.compile(r"embedd|lm_head|norm[^.]*\.[^.]+$")
_MUON_RMS = 0.2


def make_optimizer(config: GRPOConfig, weights: ParameterTree) -> optim.Optimizer:
    """The optimizer that `config` asks for, with its state for `weights`.

    Set `learning_rate` before each step and call `apply_gradients(gradients, weights)`, which
    returns the new weights. `state` is a tree of arrays, `step` the number of steps taken. A state
    read back under the same names goes on bit for bit.
    """
    rate, decay = learning_rate_of(config), config.weight_decay
    optimizer: optim.Optimizer
    match config.optimizer_type:
        case "adamw":
            optimizer = AdamW(rate, _betas(config), config.adamw_eps, decay)
        case "sgd":
            optimizer = SGD(rate, config.sgd_momentum, decay)
        case "adafactor":
            optimizer = optim.Adafactor(
                rate, weight_decay=decay, scale_parameter=False, relative_step=False
            )
        case "muon":
            optimizer = Muon(rate, config.muon_momentum, _betas(config), config.adamw_eps, decay)
    optimizer.init(weights)
    return optimizer


class AdamW(optim.AdamW):
    """AdamW with bias correction (arXiv 1711.05101, algorithm 2, as in torch).

    mlx takes 1 - beta^t in float32, which is off by 1e-5 of itself for a beta of 0.999.
    """

    def __init__(
        self, learning_rate: float, betas: list[float], eps: float, weight_decay: float
    ) -> None:
        super().__init__(learning_rate, betas, eps, weight_decay, bias_correction=True)

    def apply_single(
        self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]
    ) -> mx.array:
        """The weight after a step; keeps both moments in `state`."""
        beta1, beta2 = self.betas
        m = beta1 * state["m"] + (1 - beta1) * gradient
        v = beta2 * state["v"] + (1 - beta2) * gradient.square()
        state["m"], state["v"] = m, v
        root = mx.sqrt(v / _bias_correction(beta2, self.step)) + self.eps
        move = m / _bias_correction(beta1, self.step) / root
        rate: mx.array = self.learning_rate
        moved: mx.array = _decayed(parameter, rate, self.weight_decay) - rate * move
        return moved


class SGD(optim.SGD):
    """SGD with a decay that the momentum does not see; without momentum it keeps no moments."""

    def __init__(self, learning_rate: float, momentum: float, decay: float) -> None:
        super().__init__(learning_rate, momentum)  # mlx's weight_decay would join the momentum
        self.decay = decay

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """The last move, where it is needed."""
        if self.momentum > 0:
            super().init_single(parameter, state)

    def apply_single(
        self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]
    ) -> mx.array:
        """The weight after a step; keeps the move in `state`."""
        decayed = _decayed(parameter, self.learning_rate, self.decay)
        moved: mx.array = super().apply_single(gradient, decayed, state)
        return moved


class Muon(AdamW):
    """Muon for the matrices of the layers, AdamW for all other weights.

    The step is mlx's own, scaled so that its root mean square is about 0.2 times the learning rate
    whatever the shape, as AdamW's is (arXiv 2502.16982, equation 4): 0.2·sqrt(max(A, B)) times the
    orthogonalized momentum of a matrix [A, B]. Stacked experts [E, A, B] are E matrices.
    """

    def __init__(
        self,
        learning_rate: float,
        momentum: float,
        betas: list[float],
        eps: float,
        weight_decay: float,
    ) -> None:
        super().__init__(learning_rate, betas, eps, weight_decay)
        self._muon = optim.Muon(learning_rate=1.0, momentum=momentum, weight_decay=0.0)

    def init(self, parameters: ParameterTree) -> None:
        """Gives Muon's matrices a momentum, and all others the moments of AdamW."""
        state = dict(leaves(self._state))
        for name, parameter in leaves(parameters):
            if is_muon_matrix(name, parameter):
                state.setdefault(f"{name}.v", mx.zeros_like(parameter))
        self._state = tree_unflatten(list(state.items()))
        super().init(parameters)

    def apply_single(
        self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]
    ) -> mx.array:
        """The weight after a step; keeps the moments in `state`."""
        if "m" in state:
            return super().apply_single(gradient, parameter, state)
        rate: mx.array = self.learning_rate
        *stack, rows, columns = gradient.shape
        matrices = (math.prod(stack), rows, columns)
        move, momentum = mx.vmap(self._bare_step)(
            gradient.reshape(matrices), state["v"].reshape(matrices)
        )
        state["v"] = momentum.reshape(gradient.shape)
        # mlx has scaled by sqrt(max(1, A / B)) already, and that times sqrt(B) is sqrt(max(A, B)).
        scale = _MUON_RMS * math.sqrt(columns) * rate
        return _decayed(parameter, rate, self.weight_decay) + scale * move.reshape(gradient.shape)

    def _bare_step(self, gradient: mx.array, momentum: mx.array) -> tuple[mx.array, mx.array]:
        """mlx's step of one matrix at a learning rate of 1, and the momentum after it."""
        state = {"v": momentum}
        move = self._muon.apply_single(gradient, mx.zeros_like(gradient), state)
        return move, state["v"]


def is_muon_matrix(name: str, weight: mx.array) -> bool:
    """Whether Muon moves the weight of that dotted name: a matrix, or a stack, of some layer.

    A matrix of one row or column, such as those of a depthwise convolution, is a vector.
    """
    if not _MATRIX_NAME.search(name) or _NO_MATRIX.search(name):
        return False
    return weight.ndim >= 2 and min(weight.shape[-2:]) > 1


def _betas(config: GRPOConfig) -> list[float]:
    return [config.adamw_beta1, config.adamw_beta2]


def _bias_correction(beta: float, step: mx.array) -> mx.array:
    """1 - beta^step without the cancellation."""
    if beta == 0:
        return mx.array(1.0)
    return -mx.expm1(step.astype(mx.float32) * math.log(beta))


def _decayed(parameter: mx.array, rate: mx.array, decay: float) -> mx.array:
    return parameter * (1 - rate * decay)
