"""The questions put to a record, for files of any age: what a file lacks is asked for as NULL."""

from dataclasses import dataclass

from grpo_tui.record.database_rows import GenerationOrder, GenerationQuery
from grpo_tui.sample_query import BoundField

LIST_CHARACTERS = 400
"""Of a long text, what a list gets to see."""

RUN_COLUMNS = (
    "id",
    "name",
    "model_name",
    "model_path",
    "status",
    "started_at",
    "ended_at",
    "config",
)
STEP_COLUMNS = (
    "id",
    "step",
    "epoch",
    "loss",
    "mean_reward",
    "std_reward",
    "mean_advantage",
    "std_advantage",
    "total_tokens",
    "generation_time_ms",
    "reward_time_ms",
    "training_time_ms",
    "gradients_applied",
    "gradient_norm",
    "learning_rate",
    "peak_memory_mb",
    "active_memory_mb",
    "state",
    "created_at",
    "metrics",
)
GENERATION_COLUMNS = (
    "id",
    "run_id",
    "batch_index",
    "group_index",
    "prompt",
    "expected_answer",
    "completion_text",
    "completion_raw",
    "thinking",
    "num_tokens",
    "finish_reason",
    "reward",
    "advantage",
    "created_at",
    "reward_details",
    "token_ids",
)
TOOL_CALL_COLUMNS = (
    "call_index",
    "status",
    "tool_name",
    "arguments",
    "raw_content",
    "error_message",
)

# A run's completions are found through its steps, whose index is in the order of the list, so that
# the first rows come at once; by reward, the index (run_id, reward) does the same. Inside a step
# the keys are in the order of the batch, which spares reading the rows to sort them.
_ORDERS: dict[GenerationOrder, str] = {
    "newest": "s.step DESC, g.id",
    "oldest": "s.step, g.id",
    "best": "g.reward DESC, g.id DESC",
    "worst": "g.reward IS NULL, g.reward, g.id DESC",
}
_BOUND_COLUMNS: dict[BoundField, str] = {
    "step": "s.step",
    "reward": "g.reward",
    "tok": "g.num_tokens",
    "adv": "g.advantage",
}
_BATCH_ORDER = "g.batch_index, g.group_index, g.id"


@dataclass(frozen=True)
class Question:
    """SQL and the values of its question marks."""

    sql: str
    values: tuple[object, ...] = ()


@dataclass(frozen=True)
class Tables:
    """The columns that one file has, by table."""

    columns: dict[str, frozenset[str]]

    def select(self, table: str, wanted: tuple[str, ...], alias: str) -> str:
        """A list of columns; NULL for each that the file lacks."""
        return ", ".join(self.expression(table, column, alias) for column in wanted)

    def expression(self, table: str, column: str, alias: str) -> str:
        return f"{alias}.{column}" if column in self.columns[table] else "NULL"

    def has(self, table: str) -> bool:
        return bool(self.columns[table])


def runs(tables: Tables) -> Question:
    """Every run with its number of steps, the last of them and its reward."""
    last = "FROM training_steps s WHERE s.run_id = r.id"
    return Question(
        f"SELECT {tables.select('training_runs', RUN_COLUMNS, 'r')}, "
        f"(SELECT count(*) {last}), (SELECT max(s.step) {last}), "
        f"(SELECT s.mean_reward {last} ORDER BY s.step DESC LIMIT 1) "
        "FROM training_runs r ORDER BY r.started_at DESC, r.rowid DESC"
    )


def step_ids(run_id: str, *, newest_first: bool) -> Question:
    direction = "DESC" if newest_first else "ASC"
    return Question(
        f"SELECT id FROM training_steps WHERE run_id = ? ORDER BY step {direction}", (run_id,)
    )


def steps_by_id(tables: Tables, ids: tuple[int, ...]) -> Question:
    columns = tables.select("training_steps", STEP_COLUMNS, "s")
    return Question(f"SELECT {columns} FROM training_steps s WHERE s.id IN ({_marks(ids)})", ids)


def steps_after(tables: Tables, run_id: str, step: int) -> Question:
    columns = tables.select("training_steps", STEP_COLUMNS, "s")
    return Question(
        f"SELECT {columns} FROM training_steps s WHERE s.run_id = ? AND s.step > ? ORDER BY s.step",
        (run_id, step),
    )


def generation_ids(tables: Tables, run_id: str, query: GenerationQuery) -> Question:
    """Keys of the completions that `query` selects, in its order."""
    conditions, values = _conditions(tables, query)
    by_step = any(bound.field == "step" for bound in query.filter.bounds)
    needs_steps = query.step is not None or by_step
    if query.is_by_reward and not needs_steps:
        source, owner = "generations g", "g.run_id = ?"
    else:
        # CROSS JOIN keeps the planner from turning the loops round.
        source = "training_steps s CROSS JOIN generations g"
        owner = "g.step_id = s.id AND s.run_id = ?"
    in_batch_order = query.step is not None and not query.is_by_reward
    order = _BATCH_ORDER if in_batch_order else _ORDERS[query.order]
    where = " AND ".join([owner, *conditions])
    return Question(f"SELECT g.id FROM {source} WHERE {where} ORDER BY {order}", (run_id, *values))


def generations_by_id(tables: Tables, ids: tuple[int, ...]) -> Question:
    """Rows of a list: long texts are cut by SQLite."""
    advantage = tables.expression("generations", "advantage", "g")
    return Question(
        "SELECT g.id, s.step, g.batch_index, g.group_index, "
        f"substr(g.prompt, 1, {LIST_CHARACTERS}), substr(g.completion_text, 1, {LIST_CHARACTERS}), "
        f"g.num_tokens, g.finish_reason, g.reward, {advantage} "
        "FROM generations g LEFT JOIN training_steps s ON s.id = g.step_id "
        f"WHERE g.id IN ({_marks(ids)})",
        ids,
    )


def generation(tables: Tables, generation_id: int) -> Question:
    columns = tables.select("generations", GENERATION_COLUMNS, "g")
    return Question(
        f"SELECT {columns}, s.step FROM generations g "
        "LEFT JOIN training_steps s ON s.id = g.step_id WHERE g.id = ?",
        (generation_id,),
    )


def tool_calls(tables: Tables, generation_id: int) -> Question:
    columns = tables.select("tool_calls", TOOL_CALL_COLUMNS, "t")
    return Question(
        f"SELECT {columns} FROM tool_calls t WHERE t.generation_id = ? ORDER BY t.call_index, t.id",
        (generation_id,),
    )


def evaluations(run_id: str) -> Question:
    return Question(
        "SELECT step, name, num_prompts, metrics, created_at FROM evaluations "
        "WHERE run_id = ? ORDER BY step, id",
        (run_id,),
    )


def counts(run_id: str) -> Question:
    return Question(
        "SELECT (SELECT count(*) FROM training_steps WHERE run_id = ?), "
        "(SELECT count(*) FROM generations WHERE run_id = ?)",
        (run_id, run_id),
    )


def _conditions(tables: Tables, query: GenerationQuery) -> tuple[list[str], list[object]]:
    conditions: list[str] = []
    values: list[object] = []
    if query.step is not None:
        conditions.append("s.step = ?")
        values.append(query.step)
    for bound in query.filter.bounds:
        column = _BOUND_COLUMNS[bound.field]
        if bound.field == "adv":
            column = tables.expression("generations", "advantage", "g")
        conditions.append(f"{column} {bound.sign} ?")
        values.append(bound.value)
    if reasons := query.filter.finish_reasons:
        alternatives = " OR ".join([r"g.finish_reason LIKE ? ESCAPE '\'"] * len(reasons))
        conditions.append(f"({alternatives})")
        values += [f"{_literal(reason)}%" for reason in reasons]
    for word in query.filter.words:
        conditions.append(r"(g.prompt LIKE ? ESCAPE '\' OR g.completion_text LIKE ? ESCAPE '\')")
        values += [f"%{_literal(word)}%"] * 2
    return conditions, values


def _literal(text: str) -> str:
    """`text` without a meaning of its own inside a LIKE pattern."""
    return text.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")


def _marks(ids: tuple[int, ...]) -> str:
    return ", ".join("?" * len(ids))
