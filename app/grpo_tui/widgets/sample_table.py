"""The completions held, newest step first. It follows the newest, or stays on the chosen one."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import set_cell_size
from textual.content import Content

from grpo_tui.drawing.formatting import number
from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.drawing.sample_text import finish_word, group_name
from grpo_tui.sanitize import clean_line
from grpo_tui.state.run_model import RunState
from grpo_tui.state.sample_filter import narrow
from grpo_tui.state.samples import Sample
from grpo_tui.widgets.row_list import RowList

_DIM = "$foreground 60%"
_FIXED = 33
"""Cells before the texts, without the advantage."""
_ADVANTAGE = 7
_WIDE = 90
"""From this width on the advantage has a column."""


@dataclass(frozen=True)
class _Shown:
    """What decides which samples are shown; nothing is done again while it stays the same."""

    received: int
    held: int
    mode: str
    query: str


class SampleTable(RowList):
    """One row a completion: step, group, reward, tokens, finish reason, prompt and completion."""

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self._samples: Sequence[Sample] = ()
        self._shown: _Shown | None = None
        self._chosen: int | None = None
        self._limits = (0.0, 1.0)
        self.query_text = ""
        self.follow = True
        self.unseen = 0
        """Completions that came since the person chose one."""

    def show(self, state: RunState) -> None:
        """Takes the state of now."""
        book = state.samples
        shown = _Shown(book.received, len(book), state.sample_mode, self.query_text)
        if shown == self._shown:
            return
        fresh = shown.received - self._shown.received if self._shown is not None else 0
        self._shown = shown
        held = self.current
        old_row = self.cursor - round(self.scroll_y)
        self._samples = narrow(book.shown(state.sample_mode), self.query_text)
        rewards = [s.reward for s in self._samples if s.reward is not None]
        self._limits = (min(rewards), max(rewards)) if rewards else (0.0, 1.0)
        self.unseen = 0 if self.follow else self.unseen + max(0, fresh)
        self._keep_place(held, old_row)

    def _keep_place(self, held: Sample | None, old_row: int) -> None:
        index = 0
        if not self.follow and held is not None:
            numbers = (i for i, s in enumerate(self._samples) if s.number == held.number)
            index = next(numbers, min(self.cursor, max(0, len(self._samples) - 1)))
        self.refresh_rows()
        # The row of the screen stays the same, so that what is being read does not move.
        with self.prevent(RowList.Moved):
            self.cursor = index
        self._scroll_rows(max(0, index - old_row))
        self.show_cursor()
        if self.current is not held:
            self.post_message(self.Moved(self, self.cursor))

    @property
    def current(self) -> Sample | None:
        """The completion under the cursor."""
        return self._samples[self.cursor] if self.cursor < len(self._samples) else None

    @property
    def hits(self) -> int:
        """Completions shown."""
        return len(self._samples)

    def set_follow(self, follow: bool) -> None:
        """Stand on the newest, or stay on this one."""
        self.follow = follow
        if follow:
            self.unseen = 0
            self.cursor = 0

    def action_move(self, rows: int) -> None:
        super().action_move(rows)
        self.follow = self.follow and self.cursor == 0

    def action_page(self, pages: float) -> None:
        super().action_page(pages)
        self.follow = self.follow and self.cursor == 0

    def action_edge(self, last: bool) -> None:
        super().action_edge(last)
        self.set_follow(not last)

    def count(self) -> int:
        return len(self._samples)

    def heading(self, width: int) -> Content:
        """Titles of the columns."""
        advantage = "    adv" if width >= _WIDE else ""
        text = f"    step grp    reward{advantage}   tok fin  prompt"
        share = _prompt_width(width)
        text = f"{text.ljust(_FIXED + len(advantage) + share)} {self.glyphs.separator} completion"
        return Content.styled(text, _DIM).truncate(width)

    def draw_row(self, index: int, width: int, selected: bool) -> Content:
        sample = self._samples[index]
        advantage = "" if sample.advantage is None else f"{sample.advantage:+.2f}"
        finish = finish_word(sample)
        cut = finish not in {"stop", "-"}
        prompt, completion = self._texts(sample, _prompt_width(width), width)
        return Content.assemble(
            (self.glyphs.row_cursor if selected else " ", "$text-accent"),
            f"{sample.step:>7} {group_name(sample):<5}",
            (self._level(sample.reward), self._style(sample.reward)),
            (f"{number(sample.reward):>6}", "bold"),
            (f"{advantage:>{_ADVANTAGE}}" if width >= _WIDE else "", _DIM),
            f"{sample.tokens:>6} ",
            (f"{finish:<4} ", "bold $text-warning" if cut else _DIM),
            (prompt, _DIM),
            (f" {self.glyphs.separator} ", "$foreground 40%"),
            completion,
        )

    def _texts(self, sample: Sample, share: int, width: int) -> tuple[str, str]:
        """The prompt in `share` cells, the completion in as many as there may be."""
        ascii_only = self.glyphs.raster == "ascii"
        prompt = clean_line(sample.prompt, max(1, share), ascii_only=ascii_only)
        completion = clean_line(sample.completion, max(1, width), ascii_only=ascii_only)
        return set_cell_size(prompt, share), completion

    def _share(self, reward: float) -> float:
        low, high = self._limits
        return 1.0 if high <= low else (reward - low) / (high - low)

    def _level(self, reward: float | None) -> str:
        if reward is None:
            return self.glyphs.gap
        levels = self.glyphs.levels
        return levels[min(len(levels) - 1, int(self._share(reward) * len(levels)))]

    def _style(self, reward: float | None) -> str:
        if reward is None:
            return "$text-error"
        share = self._share(reward)
        return (
            "$text-success"
            if share > 2 / 3
            else "$text-warning"
            if share > 1 / 3
            else "$text-error"
        )


def _prompt_width(width: int) -> int:
    room = width - _FIXED - (_ADVANTAGE if width >= _WIDE else 0)
    return max(0, min(26, room // 3))
