"""Rows of SQLite to typed rows. A column may hold any type there: what does not fit is unknown."""

import json
import math
from typing import Any

from grpo_tui.record import database_rows as rows
from grpo_tui.record import database_sql as sql

Row = tuple[Any, ...]


def _named(columns: tuple[str, ...], row: Row) -> dict[str, Any]:
    return dict(zip(columns, row, strict=False))


def run(row: Row) -> rows.RunRow:
    value = _named(sql.RUN_COLUMNS, row)
    steps, last_step, last_reward = row[len(sql.RUN_COLUMNS) :]
    return rows.RunRow(
        id=_text(value["id"]),
        name=_optional_text(value["name"]),
        model_name=_text(value["model_name"]),
        model_path=_optional_text(value["model_path"]),
        status=_text(value["status"]),
        started_at=_int(value["started_at"]) or 0,
        ended_at=_int(value["ended_at"]),
        steps=steps,
        last_step=_int(last_step),
        last_reward=_float(last_reward),
        config=_text(value["config"]),
    )


def step(row: Row) -> rows.StepRow:
    value = _named(sql.STEP_COLUMNS, row)
    applied = _int(value["gradients_applied"])
    floats = {name: _float(value[name]) for name in rows.STEP_NUMBERS}
    return rows.StepRow(
        id=value["id"],
        step=_int(value["step"]) or 0,
        epoch=_int(value["epoch"]),
        total_tokens=_int(value["total_tokens"]),
        gradients_applied=None if applied is None else bool(applied),
        # A file without the column has only steps that are complete.
        state=_text(value["state"]) or "done",
        created_at=_int(value["created_at"]) or 0,
        metrics=_metrics(value["metrics"]),
        **floats,
    )


def generation_row(row: Row) -> rows.GenerationRow:
    return rows.GenerationRow(
        id=row[0],
        step=_int(row[1]) or 0,
        batch_index=_int(row[2]) or 0,
        group_index=_int(row[3]) or 0,
        prompt=_text(row[4]),
        completion=_text(row[5]),
        num_tokens=_int(row[6]) or 0,
        finish_reason=_text(row[7]),
        reward=_float(row[8]),
        advantage=_float(row[9]),
    )


def generation(row: Row, calls: list[Row]) -> rows.GenerationDetail:
    value = _named(sql.GENERATION_COLUMNS, row)
    return rows.GenerationDetail(
        id=value["id"],
        run_id=_text(value["run_id"]),
        step=_int(row[-1]) or 0,
        batch_index=_int(value["batch_index"]) or 0,
        group_index=_int(value["group_index"]) or 0,
        prompt=_text(value["prompt"]),
        expected_answer=_optional_text(value["expected_answer"]),
        completion_text=_text(value["completion_text"]),
        completion_raw=_text(value["completion_raw"]),
        thinking=_optional_text(value["thinking"]),
        num_tokens=_int(value["num_tokens"]) or 0,
        finish_reason=_text(value["finish_reason"]),
        reward=_float(value["reward"]),
        advantage=_float(value["advantage"]),
        created_at=_int(value["created_at"]) or 0,
        reward_details=_metrics(value["reward_details"]),
        token_ids=_token_ids(value["token_ids"]),
        tool_calls=tuple(
            rows.ToolCallRow(
                call_index=_int(call[0]) or 0,
                status=_text(call[1]),
                tool_name=_optional_text(call[2]),
                arguments=_optional_text(call[3]),
                raw_content=_text(call[4]),
                error_message=_optional_text(call[5]),
            )
            for call in calls
        ),
    )


def evaluation(row: Row) -> rows.EvaluationRow:
    return rows.EvaluationRow(
        step=_int(row[0]) or 0,
        name=_text(row[1]),
        num_prompts=_int(row[2]) or 0,
        metrics=_metrics(row[3]),
        created_at=_int(row[4]) or 0,
    )


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _int(value: object) -> int | None:
    if isinstance(value, float):
        return int(value) if math.isfinite(value) else None
    return value if isinstance(value, int) else None


def _text(value: object) -> str:
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _metrics(value: object) -> dict[str, float | None]:
    """The name → number map of a JSON column; a damaged one is empty."""
    parsed = _from_json(value)
    if not isinstance(parsed, dict):
        return {}
    return {str(name): _float(number) for name, number in parsed.items()}


def _token_ids(value: object) -> tuple[int, ...]:
    parsed = _from_json(value)
    if not isinstance(parsed, list):
        return ()
    return tuple(item for item in parsed if isinstance(item, int))


def _from_json(value: object) -> object:
    if not isinstance(value, str | bytes):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
