"""Questions to a record that several tests ask."""

from grpo_tui.record.database import DatabaseReader
from grpo_tui.record.database_rows import GenerationQuery

NEWEST = GenerationQuery()


async def keys(reader: DatabaseReader, query: GenerationQuery, run_id: str = "run-1") -> list[int]:
    """The completions that `query` finds, in order."""
    return [key async for chunk in reader.generation_ids(run_id, query) for key in chunk]


async def places(
    reader: DatabaseReader, query: GenerationQuery, run_id: str = "run-1"
) -> list[tuple[int, int, int]]:
    """Step, prompt and place in the group of each completion that `query` finds."""
    found = await keys(reader, query, run_id)
    rows = await reader.generations(found)
    return [(rows[key].step, rows[key].batch_index, rows[key].group_index) for key in found]
