"""The fixed policy that the KL term holds the trained one to.

It is a second set of the trainable weights, not a second model: those that the run started from.
With adapters that is the base model, because new adapters add nothing, or the adapters that
training began with. A resumed run loads its model as the first start did, so the reference is the
same again.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_map

from grpo_trainer.policy import Policy
from grpo_trainer.trees import ParameterTree, leaves

_SAMPLED_ROWS = 16


class Reference:
    """The trainable weights of the reference, float32."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.weights = policy.weights
        self.was_synced = False
        """Whether it has moved since the start, so that a checkpoint has to hold it."""
        self._fingerprint: str | None = None

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside the block the model is the reference, and after it the policy again."""
        self._policy.install(self.weights)
        try:
            yield
        finally:
            self._policy.install(self._policy.weights)

    def move_towards_policy(self, alpha: float) -> None:
        """reference = α·policy + (1-α)·reference (TR-DPO, arXiv 2404.09656).

        Adapters are mixed factor by factor, which is not the mix of their products unless α is 1.
        """
        mixed = tree_map(
            lambda new, old: alpha * new + (1 - alpha) * old, self._policy.weights, self.weights
        )
        self.restore(mixed)

    def restore(self, weights: ParameterTree) -> None:
        """Takes over the weights of a reference that had moved."""
        mx.eval(weights)
        self.weights = weights
        self.was_synced = True
        self._fingerprint = None

    @property
    def fingerprint(self) -> str:
        """A hash by which a resumed run knows it again: of the frozen weights too.

        Adapters are made from seed and shapes alone, so their base is what tells them apart. Some
        rows of each tensor are enough for that, and quick to hash in a model of any size.
        """
        if self._fingerprint is None:
            arrays = {**dict(leaves(self._policy.model.parameters())), **dict(leaves(self.weights))}
            digest = hashlib.sha256()
            for name in sorted(arrays):
                digest.update(name.encode())
                digest.update(_some_rows(arrays[name]).tobytes())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint


def _some_rows(array: mx.array) -> np.ndarray[Any, Any]:
    """Rows spread evenly over `array`; the same in whatever precision a file was loaded."""
    rows = array.reshape(-1, array.shape[-1] if array.ndim else 1)
    rows = rows[:: max(1, len(rows) // _SAMPLED_ROWS)]
    if mx.issubdtype(rows.dtype, mx.floating):
        rows = rows.astype(mx.float32)
    return np.asarray(rows)
