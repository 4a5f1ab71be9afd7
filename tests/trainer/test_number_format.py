"""How exact a model can be, by its weights and by the device."""

from unittest.mock import patch

import mlx.core as mx
import pytest

from grpo_trainer.number_format import coarsest_format
from learners import make_learner


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_on_a_cpu_it_is_that_of_the_weights(dtype: str) -> None:
    assert coarsest_format(make_learner(dtype=dtype).policy.model) == dtype


def test_float32_is_tf32_where_products_lose_its_last_bits() -> None:
    model = make_learner().policy.model
    multiply = mx.array.__matmul__

    def coarse(left: mx.array, right: mx.array) -> mx.array:
        """As tf32: ten bits after the leading one."""
        bits = (left.view(mx.uint32) + 0x1000) & 0xFFFFE000
        return multiply(bits.view(mx.float32), right)

    with patch.object(mx.array, "__matmul__", coarse):
        assert coarsest_format(model) == "tf32"
    assert coarsest_format(model) == "float32"
