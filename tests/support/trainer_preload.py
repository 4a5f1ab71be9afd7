"""Imported once by the fork server: all that a trainer imports, and nothing of it used.

mlx starts its threads at the first computation, and threads do not survive a fork.
"""

from grpo_trainer import blas

BLAS = blas.load()

import grpo_trainer.cli  # noqa: E402
import grpo_trainer.dataset  # noqa: E402
import grpo_trainer.demo.command  # noqa: E402
import grpo_trainer.trainer  # noqa: E402, F401
