"""What tests of live runs share."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from live_runs import start_endless
from trainers import StartTrainer


@pytest.fixture
def start(start_trainer: StartTrainer, tmp_path: Path, qwen3_folder: Path) -> Any:
    """Starts a run that goes on until it is told to stop."""
    return partial(start_endless, start_trainer, tmp_path, qwen3_folder)
