"""One row of the record as one line of a list: hostile text made safe, numbers made short."""

import time

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from grpo_tui.drawing.formatting import integer, number, percent
from grpo_tui.drawing.glyphs import Glyphs
from grpo_tui.record.database_rows import GenerationRow, RunRow, StepRow
from grpo_tui.record.run_catalog import RunEntry
from grpo_tui.sanitize import clean_line
from grpo_tui.state.run_status import RunStatus

DIM = "$foreground 60%"
_MIN_NAME = 8
_STATUSES = {
    "running": (RunStatus.RUNNING, "$text-success"),
    "completed": (RunStatus.COMPLETE, DIM),
    "stopped": (RunStatus.STOPPED, DIM),
    "crashed": (RunStatus.CRASHED, "$text-error"),
}
_FINISH_WORDS = {"stop": "stop", "eos": "stop", "length": "LEN", "repetition": "REP", "": "-"}

Piece = str | tuple[str, str]


def run_line(entry: RunEntry, width: int, glyphs: Glyphs) -> Content:
    """Name, status, last step, its reward, and when it began, as far as there is room."""
    if entry.run is None:
        name = safe_line(entry.database.parent.name or "/", 60, glyphs)
        error = safe_line(entry.error or "", 400, glyphs)
        return Content.assemble(("! ", "$text-error"), name, "  ", (error, "$text-error"))
    run = entry.run
    pieces: list[Piece] = [_status(run.status, glyphs)]
    columns: list[Piece] = [
        f"{integer(run.last_step) if run.last_step is not None else '-':>7}",
        (f"{number(run.last_reward):>7}", "bold"),
        (f"  {_when(run.started_at)}", DIM),
    ]
    room = width - _length(pieces) - _MIN_NAME
    for column in columns:
        if room < _length([column]):
            break
        pieces.append(column)
        room -= _length([column])
    name_width = max(1, width - _length(pieces))
    name = set_cell_size(safe_line(run_name(entry), name_width, glyphs), name_width)
    return Content.assemble(name, *pieces)


def run_name(entry: RunEntry) -> str:
    """What people call a run: its name, else its folder."""
    run = entry.run
    return (run.name if run is not None else None) or entry.database.parent.name or run_id(run)


def run_id(run: RunRow | None) -> str:
    return "" if run is None else run.id


def step_line(row: StepRow, width: int, glyphs: Glyphs) -> Content:
    """Step, reward, loss and the share of completions that were cut."""
    clipped = row.metrics.get("completions/clipped_ratio")
    pieces: list[Piece] = [
        f"{row.step:>6}",
        (" reward ", DIM),
        (f"{number(row.mean_reward):<6}", "bold"),
    ]
    columns: list[list[Piece]] = [[(" loss ", DIM), f"{number(row.loss):<7}"]]
    if clipped is not None:
        columns.append([(" trunc ", DIM), f"{percent(clipped):<5}"])
    if row.total_tokens is not None:
        columns.append([(" tok ", DIM), f"{integer(row.total_tokens):<8}"])
    if row.state != "done":
        columns.insert(0, [(f" {safe_line(row.state, 10, glyphs)}", "$text-warning")])
    room = width - _length(pieces)
    for column in columns:
        if room < _length(column):
            break
        pieces += column
        room -= _length(column)
    return Content.assemble(*pieces)


def generation_line(row: GenerationRow, width: int, glyphs: Glyphs, *, with_step: bool) -> Content:
    """Place in the batch, reward, advantage, tokens, finish reason, and the texts' beginnings."""
    finish = _FINISH_WORDS.get(row.finish_reason) or safe_line(row.finish_reason, 4, glyphs)
    cut = row.finish_reason in ("length", "repetition")
    advantage = "" if row.advantage is None else f"{row.advantage:+.2f}"
    pieces: list[Piece] = [
        f"{row.step:>6} " if with_step else "",
        f"{group_label(row.batch_index, row.group_index):<5}",
        (f"{number(row.reward):>6}", "bold"),
        (f"{advantage:>7}", DIM),
        f"{row.num_tokens:>6} ",
        (f"{finish:<5}", "bold $text-warning" if cut else DIM),
    ]
    room = max(0, width - _length(pieces))
    share = min(26, room // 3)
    if share >= _MIN_NAME:
        pieces.append((set_cell_size(safe_line(row.prompt, share, glyphs), share), DIM))
        pieces.append((f" {glyphs.separator} ", "$foreground 40%"))
    pieces.append(safe_line(row.completion, max(1, room), glyphs))
    return Content.assemble(*pieces)


def group_label(batch_index: int, group_index: int) -> str:
    """`A.3`: prompt A of the step, completion 3 of its group."""
    letter = chr(ord("A") + batch_index) if 0 <= batch_index < 26 else str(batch_index)
    return f"{letter}.{group_index}"


def _status(status: str, glyphs: Glyphs) -> tuple[str, str]:
    known = _STATUSES.get(status)
    if known is None:
        return f" ? {safe_line(status, 9, glyphs):<9}", "$text-warning"
    sign, style = known
    glyph = sign.ascii_glyph if _is_ascii(glyphs) else sign.glyph
    return f" {glyph} {sign.word:<9}", style


def safe_line(text: str, limit: int, glyphs: Glyphs) -> str:
    """Hostile `text` in one line, with the signs that `glyphs` may draw."""
    return clean_line(text, limit, ascii_only=_is_ascii(glyphs))


def _is_ascii(glyphs: Glyphs) -> bool:
    return glyphs.raster == "ascii"


def _when(milliseconds: int) -> str:
    try:
        return time.strftime("%b %d %H:%M", time.localtime(milliseconds / 1000))
    except (OverflowError, OSError, ValueError):
        return "?"


def _length(pieces: list[Piece]) -> int:
    return sum(cell_len(piece if isinstance(piece, str) else piece[0]) for piece in pieces)
