"""Scores with functions from files, which run in the reward worker."""

import time
from collections.abc import Sequence
from dataclasses import replace

from grpo_protocol.codec import valid_unicode
from grpo_protocol.config_input import ConfigError
from grpo_trainer.dataset import Example
from grpo_trainer.json_values import JsonProblem, expect_json
from grpo_trainer.rewards.batch import RewardBatch
from grpo_trainer.rewards.calling import CallSignature
from grpo_trainer.rewards.files import parse_spec
from grpo_trainer.rewards.frames import (
    Failed,
    Loaded,
    LoadFiles,
    PeerGone,
    Refused,
    Running,
    ScoreBatch,
    Scored,
    encode,
)
from grpo_trainer.rewards.process import WorkerProcess
from grpo_trainer.rewards.types import OutputCallback, RewardError, RewardScores, combine
from grpo_trainer.rewards.validation import check_signatures, check_weights

_DYING_SECONDS = 1.0
"""Between the end of a worker's pipe and its death."""


class FileScorer:
    """Calls functions of `FILE.py[:NAME]` specs. `timeout` is in seconds for a whole step; 0 for
    no limit. A timeout or a crash ends the worker; the next step starts another one.
    """

    def __init__(
        self,
        specs: Sequence[str],
        weights: Sequence[float] | None,
        timeout: float,
        on_output: OutputCallback,
    ) -> None:
        self._specs = [parse_spec(spec) for spec in specs]
        self._timeout = timeout
        self._on_output = on_output
        self._worker, self._signatures = self._start()
        try:
            self.weights = check_weights(weights, self.names)
        except ConfigError:
            self._worker.close()
            raise

    @property
    def names(self) -> list[str]:
        """Names of the functions in order."""
        return [signature.name for signature in self._signatures]

    def check(self, examples: Sequence[Example]) -> None:
        """Raises `ConfigError` for a missing column, or for a value that has no form in JSON."""
        check_signatures(self._signatures, examples)
        for example in examples:
            for name, value in example.columns.items():
                try:
                    expect_json(value)
                except JsonProblem as problem:
                    raise ConfigError(
                        f"dataset {example.source}: column `{name}` holds {problem}, which cannot "
                        "be sent to a reward file; use JSON values, or pass the function itself"
                    ) from problem

    def score(self, batch: RewardBatch) -> RewardScores:
        """Calls each function once with the whole batch. Raises `RewardError`."""
        payload = _payload(batch)
        self._revive(batch.step)
        running: list[str] = []
        try:
            reply = self._ask(payload, running)
        except TimeoutError as error:
            self._worker.end()
            raise RewardError(
                f"not done within reward_timeout={self._timeout:g} s and was ended; raise it, or "
                "make the function faster",
                function=", ".join(running) or None,
                step=batch.step,
            ) from error
        except PeerGone as error:
            raise RewardError(
                f"its process {self._worker.end(_DYING_SECONDS)}; the log has what it printed last",
                function=", ".join(running) or None,
                step=batch.step,
            ) from error
        except BaseException:
            # Else its reply would be taken for that of the next batch.
            self._worker.end()
            raise
        if isinstance(reply, Failed):
            raise RewardError(
                reply.message,
                function=reply.function,
                step=batch.step,
                row=reply.row,
                detail=reply.detail,
            )
        return combine(reply.scores, self.weights)

    def close(self) -> None:
        """Ends the worker."""
        self._worker.close()

    def _ask(self, payload: bytes, running: list[str]) -> Scored | Failed:
        deadline = time.monotonic() + self._timeout if self._timeout else None
        self._worker.send(payload, deadline)
        while True:
            match self._worker.receive(deadline):
                case Running(functions=names):
                    running[:] = names
                case Scored() | Failed() as reply:
                    return reply
                case _:
                    raise PeerGone

    def _start(self) -> tuple[WorkerProcess, list[CallSignature]]:
        try:
            worker = WorkerProcess(self._on_output)
        except OSError as error:
            raise ConfigError(f"reward worker: cannot be started: {error}") from error
        try:
            worker.send(encode(LoadFiles(self._specs)), None)
            reply = worker.receive(None)
        except PeerGone as error:
            files = ", ".join(dict.fromkeys(spec.path for spec in self._specs))
            raise ConfigError(
                f"reward file {files}: the process that imports it {worker.end(_DYING_SECONDS)}"
            ) from error
        except BaseException:
            worker.end()
            raise
        if isinstance(reply, Loaded):
            return worker, reply.signatures
        worker.close()
        assert isinstance(reply, Refused)
        refusal = ConfigError(reply.message)
        if reply.detail:
            refusal.add_note(reply.detail)
        raise refusal

    def _revive(self, step: int) -> None:
        """Starts another worker if the last one is gone."""
        if self._worker.lives():
            return
        self._on_output("notice", f"the reward worker {self._worker.end()}; it is started again")
        names = self.names
        try:
            self._worker, self._signatures = self._start()
        except ConfigError as error:
            raise RewardError(str(error), function=None, step=step) from error
        if self.names != names:
            raise RewardError(
                f"the files have other functions now ({', '.join(self.names)}) than at the start "
                f"({', '.join(names)})",
                function=None,
                step=step,
            )


def _payload(batch: RewardBatch) -> bytes:
    for name, values in batch.columns.items():
        for row, value in enumerate(values):
            try:
                expect_json(value)
            except JsonProblem as problem:
                raise RewardError(
                    f"column `{name}` holds {problem}, which cannot be sent to a reward file",
                    function=None,
                    step=batch.step,
                    row=row,
                ) from problem
    try:
        return encode(ScoreBatch(batch))
    except UnicodeEncodeError:
        # Only the model's own text can hold half a surrogate pair here.
        texts = [valid_unicode(text) for text in batch.completions]
        return encode(ScoreBatch(replace(batch, completions=texts)))
