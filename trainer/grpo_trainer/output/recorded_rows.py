"""The rows of one run in `outputs.db`: what a step, its completions and its events become in SQL.

Every function works inside the transaction of its caller and may be tried again as a whole.
"""

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from sqlite3 import Connection
from typing import Any

import msgspec

from grpo_protocol.codec import encode_json, valid_unicode
from grpo_protocol.config import GRPOConfig
from grpo_protocol.database import RecordedStatus
from grpo_protocol.messages import Eval, Generation, Log, Step
from grpo_trainer.summary import mean_of, sample_std

_MAX_INTEGER = 2**63 - 1


class RunIdentity(msgspec.Struct, frozen=True):
    """What the row of a run says about it."""

    id: str
    name: str | None
    model_name: str
    model_path: str
    config: GRPOConfig


def start_run(db: Connection, run: RunIdentity, resume_after_step: int | None) -> None:
    """Adds the row of `run`, or opens it again and removes what is newer than the resumed step."""
    total_steps = resume_after_step or 0
    _upsert(
        db,
        "training_runs",
        ("id",),
        {
            "id": run.id,
            "name": run.name,
            "model_name": run.model_name,
            "model_path": run.model_path,
            # Read by people and by SQL, hence not the wire's camelCase.
            "config": json.dumps(msgspec.to_builtins(run.config), ensure_ascii=False),
            "started_at": _now(),
            "ended_at": None,
            "total_steps": total_steps,
            "status": "running",
        },
        keep=("started_at",),
    )
    if resume_after_step is not None:
        _remove_after(db, run.id, resume_after_step)


def write_scored(
    db: Connection,
    run_id: str,
    step: int,
    epoch: int | None,
    generations: Sequence[Generation],
    texts: Sequence[str] | None,
) -> None:
    """The step as far as it is known before the update, and all of its completions."""
    _remove_step(db, run_id, "= ?", step)
    rewards = _known(generation.reward for generation in generations)
    advantages = _known(generation.advantage for generation in generations)
    row = {
        "run_id": run_id,
        "step": step,
        "epoch": epoch,
        "mean_reward": mean_of(rewards) if rewards else None,
        "std_reward": sample_std(rewards) if rewards else None,
        "mean_advantage": mean_of(advantages) if advantages else None,
        "std_advantage": sample_std(advantages) if advantages else None,
        "total_tokens": sum(generation.tokens for generation in generations),
        "state": "scored",
        "created_at": _now(),
    }
    step_id = _insert(db, "training_steps", row)
    for position, generation in enumerate(generations):
        text = texts[position] if texts is not None else generation.completion
        _write_generation(db, run_id, step_id, generation, text)


def write_done(db: Connection, run_id: str, event: Step) -> None:
    """The step with all that its update told; stands alone if its completions could not be kept."""
    row = {
        "run_id": run_id,
        "step": event.step,
        "epoch": event.epoch,
        "loss": event.loss,
        "mean_reward": event.mean_reward,
        "std_reward": event.std_reward,
        "mean_advantage": event.mean_advantage,
        "std_advantage": event.std_advantage,
        "total_tokens": event.total_tokens,
        "generation_time_ms": event.generation_time_ms,
        "reward_time_ms": event.reward_time_ms,
        "training_time_ms": event.training_time_ms,
        "gradients_applied": event.gradients_applied,
        "gradient_norm": event.gradient_norm,
        "learning_rate": event.learning_rate,
        "peak_memory_mb": event.peak_memory_mb,
        "active_memory_mb": event.active_memory_mb,
        "metrics": encode_json(event.metrics).decode(),
        "state": "done",
        "created_at": _now(),
    }
    # What the event does not tell may be known since the step was scored.
    unknown = [name for name, value in row.items() if value is None]
    _upsert(db, "training_steps", ("run_id", "step"), row, keep=unknown)
    db.execute("UPDATE training_runs SET total_steps = ? WHERE id = ?", (event.step, run_id))


def write_log(db: Connection, run_id: str, created_at: int, event: Log) -> None:
    """A line of text, with the time it was said."""
    row = {
        "run_id": run_id,
        "level": event.level,
        "target": event.source,
        "message": event.message,
        "created_at": created_at,
    }
    _insert(db, "logs", row)


def write_evaluation(db: Connection, run_id: str, event: Eval) -> None:
    """A result on held-out prompts, in place of one of that step."""
    db.execute(
        "DELETE FROM evaluations WHERE run_id = ? AND step = ? AND name = ?",
        (run_id, event.step, valid_unicode(event.name)),
    )
    row = {
        "run_id": run_id,
        "step": event.step,
        "name": event.name,
        "num_prompts": event.num_prompts,
        "metrics": encode_json(event.metrics).decode(),
        "created_at": _now(),
    }
    _insert(db, "evaluations", row)


def write_setting(db: Connection, run_id: str, step: int, key: str, value: str) -> None:
    """A setting that was changed while training."""
    row = {"run_id": run_id, "step": step, "key": key, "value": value, "created_at": _now()}
    _insert(db, "setting_changes", row)


def end_run(db: Connection, run_id: str, status: RecordedStatus, total_steps: int) -> None:
    """Closes the row of the run."""
    db.execute(
        "UPDATE training_runs SET status = ?, ended_at = ?, total_steps = ? WHERE id = ?",
        (status, _now(), total_steps, run_id),
    )


def touch_run(db: Connection, run_id: str) -> None:
    """Changes nothing, but makes a transaction that can be waited for."""
    db.execute("UPDATE training_runs SET status = status WHERE id = ?", (run_id,))


def _write_generation(
    db: Connection, run_id: str, step_id: int, generation: Generation, text: str
) -> None:
    row = {
        "run_id": run_id,
        "step_id": step_id,
        "batch_index": generation.prompt_index or 0,
        "group_index": generation.index
        if generation.group_index is None
        else generation.group_index,
        "prompt": generation.prompt,
        "expected_answer": generation.expected_answer,
        "completion_text": text,
        "completion_raw": generation.completion,
        "thinking": generation.thinking,
        "num_tokens": generation.tokens,
        "finish_reason": generation.finish_reason or "unknown",
        "reward": generation.reward,
        "reward_details": encode_json(generation.reward_details).decode(),
        "advantage": generation.advantage,
        "token_ids": encode_json(generation.token_ids).decode(),
        "created_at": _now(),
    }
    generation_id = _insert(db, "generations", row)
    for call_index, call in enumerate(generation.tool_calls):
        _insert(
            db,
            "tool_calls",
            {
                "generation_id": generation_id,
                "call_index": call_index,
                "status": call.status,
                "tool_name": call.name or None,
                "arguments": call.arguments or None,
                "raw_content": call.raw_content,
                "error_message": call.error,
            },
        )


def _remove_after(db: Connection, run_id: str, step: int) -> None:
    """Everything that will be done again, and what was logged while it was done."""
    db.execute(
        """DELETE FROM logs WHERE run_id = :run AND created_at > COALESCE(
            (SELECT MAX(created_at) FROM training_steps WHERE run_id = :run AND step <= :step),
            (SELECT started_at FROM training_runs WHERE id = :run))""",
        {"run": run_id, "step": step},
    )
    _remove_step(db, run_id, "> ?", step)
    for table in ("evaluations", "setting_changes"):
        db.execute(f"DELETE FROM {table} WHERE run_id = ? AND step > ?", (run_id, step))


def _remove_step(db: Connection, run_id: str, which: str, step: int) -> None:
    steps = f"SELECT id FROM training_steps WHERE run_id = ? AND step {which}"
    generations = f"SELECT id FROM generations WHERE step_id IN ({steps})"
    for statement in (
        f"DELETE FROM tool_calls WHERE generation_id IN ({generations})",
        f"DELETE FROM generations WHERE step_id IN ({steps})",
        f"DELETE FROM training_steps WHERE run_id = ? AND step {which}",
    ):
        db.execute(statement, (run_id, step))


def _insert(db: Connection, table: str, row: Mapping[str, Any]) -> int:
    columns, marks = ", ".join(row), ", ".join("?" * len(row))
    cursor = db.execute(
        f"INSERT INTO {table} ({columns}) VALUES ({marks})", [_value(v) for v in row.values()]
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _upsert(
    db: Connection,
    table: str,
    key: tuple[str, ...],
    row: Mapping[str, Any],
    keep: Sequence[str],
) -> None:
    """Adds `row`, or updates the one with its `key` in all columns but those to keep."""
    columns, marks = ", ".join(row), ", ".join("?" * len(row))
    changes = ", ".join(f"{name} = excluded.{name}" for name in row if name not in (*key, *keep))
    db.execute(
        f"INSERT INTO {table} ({columns}) VALUES ({marks}) "
        f"ON CONFLICT ({', '.join(key)}) DO UPDATE SET {changes}",
        [_value(v) for v in row.values()],
    )


def _value(value: Any) -> Any:
    """What SQLite can hold of `value`: NaN and infinity are unknown, text is valid UTF-8."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return max(-_MAX_INTEGER - 1, min(int(value), _MAX_INTEGER))
    return valid_unicode(value) if isinstance(value, str) else value


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _now() -> int:
    return time.time_ns() // 1_000_000
