"""How exact a model can be, by its weights and by the device."""

from unittest.mock import patch

import pytest

from grpo_trainer import number_format
from grpo_trainer.number_format import coarsest_format
from learners import make_learner


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_on_a_cpu_it_is_that_of_the_weights(dtype: str) -> None:
    assert coarsest_format(make_learner(dtype=dtype).policy.model) == dtype


@pytest.mark.parametrize(("setting", "expected"), [(None, "tf32"), ("1", "tf32"), ("0", "float32")])
def test_a_gpu_multiplies_float32_as_tf32_unless_told_not_to(
    setting: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLX_ENABLE_TF32", raising=False)
    if setting is not None:
        monkeypatch.setenv("MLX_ENABLE_TF32", setting)
    with patch.object(number_format, "gpu_memory", lambda: 10**9):
        assert coarsest_format(make_learner().policy.model) == expected
        assert coarsest_format(make_learner(dtype="bfloat16").policy.model) == "bfloat16"
