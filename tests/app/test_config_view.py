"""The Config tab says of a setting what can be set."""

import pytest

from dashboard import dashboard
from grpo_tui.widgets.config_view import ConfigView


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("fine_tune_type", "One of lora, dora, full."),
        ("importance_sampling_level", "One of token, sequence."),
        ("output_store.enabled", "Record every step and completion"),
        ("output_store.local_path", "Database file"),
    ],
)
async def test_the_chosen_setting_is_described_with_its_choices(key: str, told: str) -> None:
    async with dashboard((160, 50)) as board:
        await board.begin()
        await board.press("3")
        view = board.app.screen.query_one(ConfigView)
        rows = [view.draw_row(row, 80, selected=False).plain for row in range(view.count())]
        view.cursor = [row.split()[0] for row in rows].index(key)
        await board.settle()
        assert board.find(f"{key}: ")
        assert told in board.text
