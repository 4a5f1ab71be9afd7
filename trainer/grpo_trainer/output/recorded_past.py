"""What the record knows of the steps before a resume: the last ones, and totals over all."""

from sqlite3 import Connection

import msgspec

from grpo_protocol.messages import Aggregates, MetricsHistoryItem

_HISTORY_STEPS = 60


class RecordedPast(msgspec.Struct, frozen=True):
    """Empty for a run that begins."""

    history: list[MetricsHistoryItem] = []
    """The last steps, oldest first."""
    aggregates: Aggregates = Aggregates()


def read_past(db: Connection, run_id: str) -> RecordedPast:
    """The finished steps of `run_id`."""
    columns = "step, loss, mean_reward, std_advantage, generation_time_ms, training_time_ms"
    rows = db.execute(
        f"""SELECT {columns} FROM training_steps WHERE run_id = ? AND state = 'done'
            ORDER BY step DESC LIMIT ?""",
        (run_id, _HISTORY_STEPS),
    ).fetchall()
    names = columns.split(", ")
    history = [MetricsHistoryItem(**dict(zip(names, row, strict=True))) for row in reversed(rows)]
    totals = db.execute(
        """SELECT MAX(mean_reward), AVG(mean_reward), COUNT(mean_reward),
                  MIN(loss), AVG(loss), COUNT(loss), COALESCE(SUM(total_tokens), 0),
                  AVG(generation_time_ms), AVG(training_time_ms)
           FROM training_steps WHERE run_id = ? AND state = 'done'""",
        (run_id,),
    ).fetchone()
    return RecordedPast(history, Aggregates(*totals))
