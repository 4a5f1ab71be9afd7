"""The command: loads a model as a run would, checks it, and prints a line for each check."""

import sys
import traceback
from collections.abc import Callable

from msgspec.structs import replace

from grpo_protocol import ConfigError
from grpo_protocol.config import GRPOConfig
from grpo_trainer.demo.command import MODEL_FOLDER
from grpo_trainer.output.live_stream import LiveStream
from grpo_trainer.output.plain_text import show_controls
from grpo_trainer.policy import Policy, load_policy
from grpo_trainer.selftest.bench import Bench, settings_of_bench
from grpo_trainer.selftest.checks import CHECKS
from grpo_trainer.selftest.finding import Finding, Table
from grpo_trainer.session import display_name, one_line
from grpo_trainer.trees import leaves


def run_selftest(config: GRPOConfig, *, debug: bool = False) -> int:
    """0 when every check passes, 1 when one fails; `debug` shows the tracebacks of checks.

    Without `config.model` the bundled model is tested. Raises `ConfigError` or `ModelError` for
    what a run would refuse.
    """
    out = LiveStream(sys.stdout)
    if config.resume_from_checkpoint is not None:
        raise ConfigError(
            f"resume_from_checkpoint={config.resume_from_checkpoint!r}: selftest resumes nothing; "
            "name the checkpoint's folder as model or adapter_path"
        )
    if config.model is None:
        config = replace(config, model=str(MODEL_FOLDER), model_name=config.model_name or "demo")
    config = settings_of_bench(config)

    def say(message: str) -> None:
        out.write(show_controls(message) + "\n")

    say(f"loading {display_name(config)}")
    policy = load_policy(config, say)
    for note in policy.notes:
        say(f"warning: {note}")
    bench = Bench(policy, config)
    say(_headline(policy, config, bench.tolerances.precision))
    failed = _check_all(bench, out, debug=debug)
    say(
        f"{failed} of {len(CHECKS)} checks failed" if failed else f"all {len(CHECKS)} checks passed"
    )
    return 1 if failed else 0


def _headline(policy: Policy, config: GRPOConfig, precision: str) -> str:
    kind = policy.source.config.get("model_type", "unknown")
    return (
        f"selftest of {display_name(config)}: {kind}, {config.fine_tune_type}, {precision}, "
        f"{config.optimizer_type}, {policy.num_trainable:,} trainable weights in "
        f"{len(leaves(policy.weights))} tensors"
    )


def _check_all(bench: Bench, out: LiveStream, *, debug: bool) -> int:
    """Prints the table and returns the number of checks that failed."""
    table = Table(out, [name for name, _ in CHECKS])
    failed = 0
    for name, check in CHECKS:
        finding = _finding(bench, check, debug=debug)
        table.line(name, finding)
        failed += finding.verdict == "FAILED"
    return failed


def _finding(bench: Bench, check: Callable[[Bench], Finding], *, debug: bool) -> Finding:
    try:
        return check(bench)
    except Exception as error:  # of the model's code: the other checks may still say something
        if debug:
            traceback.print_exception(error)
        return Finding("FAILED", one_line(error))
