"""What the demo makes of the words it is given."""

import pytest

from grpo_protocol import ConfigError, load_config
from grpo_trainer.demo import settings
from grpo_trainer.demo.command import MODEL_FOLDER, demo_config


def test_the_bundled_model_is_used() -> None:
    assert demo_config(load_config(settings.SETTINGS)).model == str(MODEL_FOLDER)


@pytest.mark.parametrize("key", ["model", "data", "eval_data", "reward"])
def test_other_inputs_are_refused_not_ignored(key: str) -> None:
    config = load_config(settings.SETTINGS, {key: "mine"})
    with pytest.raises(ConfigError, match=f"^{key}=.*mine.*use `train`"):
        demo_config(config)


def test_a_slow_machine_gets_a_shorter_demo() -> None:
    config = load_config(settings.SETTINGS)
    assert demo_config(config, slowness=1.0).max_steps == config.max_steps
    assert (demo_config(config, slowness=18.0).max_steps or 0) < (config.max_steps or 0)


def test_a_length_that_was_chosen_is_kept() -> None:
    config = load_config(settings.SETTINGS, {"max_steps": "100"})
    assert demo_config(config, slowness=18.0).max_steps == 100
