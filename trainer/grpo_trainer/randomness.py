"""All randomness is derived from (seed, purpose, position), so resuming carries no generator."""

import hashlib
from typing import Any, cast

import mlx.core as mx


def derived_key(seed: int, *position: int | str) -> mx.array:
    """A random key of shape [2] that depends on nothing but its arguments."""
    return mx.random.key(derived_seed(seed, *position))


def derived_seed(seed: int, *position: int | str) -> int:
    """A 64-bit seed that depends on nothing but its arguments."""
    text = ":".join(map(str, (seed, *position)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def token_keys(seed: int, step: int, rows: range, num_tokens: int) -> mx.array:
    """Keys of shape [rows, num_tokens, 2]: one for each token that each row may sample.

    A row's tokens do not depend on which rows share its batch.
    """
    keys = [mx.random.split(derived_key(seed, "row", step, row), num_tokens) for row in rows]
    return mx.stack(keys)


def random_position() -> int:
    """The seed from which mlx's global stream would go on as it is about to."""
    high, low = cast("Any", mx.random.state)[0].tolist()
    return int(high << 32 | low)
