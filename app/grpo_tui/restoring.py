"""Reads from the record what the stream did not tell: after a resume, and after dropped steps."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

from grpo_tui.notices import AppNote
from grpo_tui.record.database import DatabaseReader, RecordError
from grpo_tui.record.database_rows import STEP_NUMBERS, EvaluationRow, StepRow
from grpo_tui.state.history import want_past
from grpo_tui.state.restore import (
    StoredStep,
    merging,
    past_of,
    restore_evaluations,
    tokens_up_to,
)
from grpo_tui.state.run_model import Evaluation, RunState

PAUSE_SECONDS: Final = 2.0
"""Between two readings: a dashboard that is too slow must not be made slower."""
_ATTEMPTS: Final = 5
"""The writer of the record may be behind the stream by some steps."""


class PastReader:
    """Fills the charts of `state`, whose record's path is relative to `folder`."""

    def __init__(
        self,
        state: RunState,
        folder: Path,
        tell: Callable[[AppNote], object],
        pause: float = PAUSE_SECONDS,
    ) -> None:
        self._state = state
        self._folder = folder
        self._tell = tell
        self._pause = pause
        self._busy = False

    @property
    def is_due(self) -> bool:
        """Steps are missing, and it is known where they may be."""
        state = self._state
        is_known = state.database_path is not None and state.run_id is not None
        return state.past_wanted is not None and is_known and not self._busy

    async def read(self) -> None:
        """Reads until the record holds what is missing, or has been given enough time for it."""
        self._busy = True
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                after, self._state.past_wanted = self._state.past_wanted, None
                if after is None:
                    return
                if not await self._read_after(after, is_last=attempt == _ATTEMPTS):
                    want_past(self._state, after)
                await asyncio.sleep(self._pause)
        except RecordError as error:
            self._tell(AppNote(f"earlier steps cannot be charted: {error}", "warn"))
        finally:
            self._busy = False

    async def _read_after(self, after: int, *, is_last: bool) -> bool:
        """Whether the record was far enough; the last time what there is must do."""
        state = self._state
        path, run_id = state.database_path, state.run_id
        assert path is not None
        assert run_id is not None
        life, reached = state.restarts, state.progress.step
        tokens = tokens_up_to(state, after)
        run_folder = None if state.output_dir is None else self._folder / state.output_dir
        rows: list[StepRow] = []
        async with await DatabaseReader.open(self._folder / path, run_folder) as reader:
            if (await reader.counts(run_id))[0] < reached and not is_last:
                return False
            first = 0 if tokens is None else after
            async with aclosing(reader.step_series(run_id, first)) as some:
                async for chunk in some:
                    rows += [row for row in chunk if row.state == "done"]
            evaluations = await reader.evaluations(run_id)
        past = await asyncio.to_thread(past_of, map(_stored, rows), tokens or 0)
        merge = merging(state, past)
        # Another trainer may have begun meanwhile, further back: it asks for a past of its own.
        while state.restarts == life and next(merge, _DONE) is not _DONE:
            await asyncio.sleep(0)
        if state.restarts == life:
            restore_evaluations(state, [_evaluation(row) for row in evaluations])
        return True


_DONE: Final = object()


def _stored(row: StepRow) -> StoredStep:
    columns = {name: getattr(row, name) for name in STEP_NUMBERS}
    told = {name: value for name, value in columns.items() if value is not None}
    unknown = {name: None for name in ("loss", "mean_reward") if name not in told}
    return StoredStep(
        row.step, row.created_at, row.total_tokens or 0, {**row.metrics, **told, **unknown}
    )


def _evaluation(row: EvaluationRow) -> tuple[Evaluation, float]:
    return Evaluation(row.step, row.name, row.num_prompts, row.metrics), row.created_at / 1000
