"""All settings of the run by group; the description of the chosen one stands below."""

from typing import Final

from textual.content import Content

from grpo_protocol.config import config_keys
from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.state.run_model import ConfigEntry, RunState
from grpo_tui.widgets.row_list import RowList

_DESCRIPTIONS: Final = {
    "training_type": "Kind of training that the trainer does.",
    **{
        key.name: f"{key.description} One of {', '.join(key.choices)}."
        if key.choices
        else key.description
        for section in config_keys()
        for key in (section, *section.keys)
    },
}


class ConfigView(RowList):
    """A heading for each group, then its keys; defaults are dim, live keys are marked."""

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._entries: list[ConfigEntry] | None = None
        self._rows: list[ConfigEntry | str] = []

    def show(self, state: RunState) -> None:
        """Takes the state of now."""
        if self._entries is state.config and self._rows:
            return
        first = not self._rows
        self._entries = state.config
        groups: dict[str, list[ConfigEntry]] = {}
        for entry in state.config:
            groups.setdefault(entry.group, []).append(entry)
        self._rows = []
        for group, entries in groups.items():
            self._rows += [group, *entries]
        if first:
            self.cursor = 1
        self.refresh_rows()

    def action_move(self, rows: int) -> None:
        super().action_move(rows)
        if self._rows and isinstance(self._rows[self.cursor], str):
            # A heading has nothing to tell.
            super().action_move(1 if rows > 0 or self.cursor == 0 else -1)

    def count(self) -> int:
        return len(self._rows)

    def describe(self) -> Content:
        """What the chosen key means."""
        if not self._rows:
            return Content.styled("the trainer has not told its settings yet", "$foreground 60%")
        row = self._rows[self.cursor]
        if isinstance(row, str):
            return Content.styled(f"settings of {row}", "$foreground 60%")
        live = "  can be changed while training" if row.live else ""
        return Content.assemble(
            (f"{row.key}: ", "bold"), _DESCRIPTIONS.get(row.key, ""), (live, "$text-accent")
        )

    def draw_row(self, index: int, width: int, selected: bool) -> Content:
        row = self._rows[index]
        mark = (self.glyphs.row_cursor if selected else " ", "$text-accent")
        if isinstance(row, str):
            return Content.assemble(mark, (row, "bold $text-primary"))
        name = row.key + ("*" if row.live else "")
        style = "$foreground 55%" if row.is_default else "bold"
        sign = " " if row.is_default else "="
        return Content.assemble(mark, f"  {name:<30} {sign} ", (row.value, style))
