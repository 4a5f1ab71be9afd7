"""How far the run is, how long it will take, and where the time goes."""

from collections.abc import Sequence

from textual.content import Content
from textual.widget import Widget

from grpo_tui.drawing.formatting import ago, duration, memory, number, seconds
from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.state import metric_names as names
from grpo_tui.state.run_model import RunState

_DIM = "$foreground 60%"


def bar(done: int, total: int, width: int, glyphs: Glyphs) -> Content:
    """A bar of `width` cells that is full only when all is done."""
    if width < 1:
        return Content("")
    share = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
    halves = int(share * width * 2)
    full, part = divmod(halves, 2)
    filled = glyphs.bar_full * full + (glyphs.bar_part if part else "")
    rest = glyphs.bar_empty * (width - len(filled))
    return Content.assemble((filled, "$text-primary"), (rest, "$foreground 30%"))


def time_split(state: RunState) -> Content:
    """`step 14.2s: gen 11.9 reward 0.2 train 2.1` of the newest step."""
    parts = [
        (title, value)
        for title, name in (
            ("gen", names.GENERATION_TIME),
            ("reward", names.REWARD_TIME),
            ("train", names.TRAINING_TIME),
        )
        if (value := state.latest(name)) is not None
    ]
    if not parts:
        return Content("")
    total = sum(value for _, value in parts)
    # Parts have the unit of their sum, which is told once.
    scale, digits = (1000, 0) if total < 1 else (1, 1)
    split = " ".join(f"{title} {value * scale:.{digits}f}" for title, value in parts)
    return Content.assemble("step ", (seconds(total * 1000), "bold"), (f": {split}", _DIM))


def fitting(parts: Sequence[Content], width: int, glyphs: Glyphs) -> Content:
    """As many whole `parts` as `width` has room for, from the first on."""
    line = Content(" ")
    separator = Content.styled(f" {glyphs.separator} ", "$foreground 40%")
    for number_, part in enumerate(parts):
        longer = Content("").join([line, separator, part] if number_ else [line, part])
        if longer.cell_length > width:
            break
        line = longer
    return line


class ProgressPanel(Widget):
    """Bars, times, throughput; one row when `strip`."""

    BORDER_TITLE = "Progress"
    DEFAULT_CSS = "ProgressPanel { height: auto; text-wrap: nowrap; }"

    def __init__(
        self, glyphs: Glyphs = UNICODE, *, strip: bool = False, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._glyphs, self._strip = glyphs, strip
        self._state: RunState | None = None

    def show(self, state: RunState) -> None:
        """Takes the state of now."""
        self._state = state
        self.refresh(layout=False)

    def render(self) -> Content:
        if self._state is None:
            return Content("")
        width = self.size.width
        if self._strip:
            return self._one_line(self._state, width)
        lines = [*self._bars(self._state, width), *self._times(self._state)]
        return Content("\n").join(line.truncate(width) for line in lines)

    def _one_line(self, state: RunState, width: int) -> Content:
        total = state.progress.total_steps
        parts = []
        if total:
            counts = f"{state.progress.step}/{total} "
            parts.append(
                Content.assemble(counts, bar(state.progress.step, total, 14, self._glyphs))
            )
        parts.append(
            Content(f"{duration(state.elapsed_seconds)} eta {duration(state.eta_seconds)}")
        )
        if (rate := state.latest(names.TOKENS_PER_SECOND)) is not None:
            parts.append(Content(f"{number(rate)} tok/s"))
        parts += [part for part in (time_split(state),) if part]
        return fitting(parts, width, self._glyphs)

    def _bars(self, state: RunState, width: int) -> list[Content]:
        progress = state.progress
        rows = [("total", progress.step, progress.total_steps)]
        if progress.total_epochs != 1:
            rows.insert(0, ("epoch", progress.step_in_epoch, progress.num_batches))
        return [self._bar_row(title, done, total, width) for title, done, total in rows]

    def _bar_row(self, title: str, done: int, total: int | None, width: int) -> Content:
        if total is None:
            return Content.assemble(f"{title:<6}", (f"step {done} of an unknown number", _DIM))
        share = f"{done / total:4.0%}" if total else ""
        counts = f" {done}/{total} {share}"
        line = bar(done, total, max(1, width - 6 - len(counts)), self._glyphs)
        return Content.assemble(f"{title:<6}", line, counts)

    def _times(self, state: RunState) -> list[Content]:
        pace = state.times.step_seconds
        about = f"  (median {seconds(pace * 1000)})" if pace is not None else ""
        rate = number(state.latest(names.TOKENS_PER_SECOND))
        lines = [
            Content.assemble(
                "elapsed ",
                (duration(state.elapsed_seconds), "bold"),
                "  eta ",
                (duration(state.eta_seconds), "bold"),
                (about, _DIM),
            ),
            time_split(state) or Content.styled("no step yet", _DIM),
            Content.assemble(
                "tokens ",
                (number(float(state.totals.tokens)), "bold"),
                "  ",
                (rate, "bold"),
                " tok/s",
                *self._memory(state),
            ),
            self._best(state),
            self._freshness(state),
        ]
        return [line for line in lines if line]

    def _memory(self, state: RunState) -> tuple[str, ...]:
        peak = state.latest(names.PEAK_MEMORY)
        return () if peak is None else (f"  peak mem {memory(peak)}",)

    def _best(self, state: RunState) -> Content:
        totals = state.totals
        if totals.best_reward is None:
            return Content("")
        at = "" if totals.best_reward_step is None else f" at step {totals.best_reward_step}"
        return Content.assemble("best reward ", (number(totals.best_reward), "bold"), (at, _DIM))

    def _freshness(self, state: RunState) -> Content:
        saved = state.last_checkpoint
        parts = []
        if state.ended is None and state.times.last_step is not None:
            since = state.clock() - state.times.last_step
            pace = state.times.step_seconds
            late = pace is not None and since > max(10.0, 5 * pace) and not state.paused
            sign = f"{self._glyphs.gap} " if late else ""
            style = "bold $text-warning" if late else _DIM
            parts.append(Content.styled(f"{sign}last step {ago(since)} ago", style))
        if saved is not None:
            since = state.clock() - saved.at
            text = f"saved step {saved.step} {ago(since)} ago"
            parts.append(Content.styled(text, _DIM))
        return Content("  ").join(parts)
