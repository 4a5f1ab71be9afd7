"""What a run leaves behind, without what no two runs have in common."""

import json
import sqlite3
from pathlib import Path
from typing import Any

MEASURED = ("_ms", "_mb", "step_time", "created_at")


def files_of(folder: Path) -> dict[str, bytes]:
    """Weights and optimizer state of a checkpoint."""
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def rows_of(folder: Path) -> list[tuple[Any, ...]]:
    """Steps and completions, without ids, times, rates and memory."""
    with sqlite3.connect(folder / "outputs.db") as db:
        db.row_factory = sqlite3.Row
        queries = [
            "SELECT * FROM training_steps ORDER BY step",
            """SELECT training_steps.step, generations.* FROM generations JOIN training_steps
               ON step_id = training_steps.id ORDER BY step, batch_index, group_index""",
        ]
        rows = [(n, dict(row)) for n, query in enumerate(queries) for row in db.execute(query)]
    return [(n, *sorted(_without_measures(row).items())) for n, row in rows]


def _without_measures(row: dict[str, Any]) -> dict[str, Any]:
    kept = {
        name: value
        for name, value in row.items()
        if not name.endswith(MEASURED) and name not in ("id", "run_id", "step_id")
    }
    if kept.get("metrics"):
        metrics = json.loads(kept["metrics"])
        kept["metrics"] = repr({k: v for k, v in metrics.items() if not k.endswith(MEASURED)})
    return kept


def logged_steps(folder: Path) -> list[dict[str, Any]]:
    """The steps in the log file of a run."""
    (log,) = folder.glob("*.jsonl")
    records = [json.loads(line) for line in log.read_text().splitlines()]
    names = ("step", "loss", "mean_reward", "std_reward", "mean_advantage", "total_tokens")
    return [{n: record.get(n) for n in names} for record in records if record["event"] == "step"]


def query(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """Asks the database in the folder of a run."""
    with sqlite3.connect(folder / "outputs.db") as db:
        return db.execute(sql).fetchall()
