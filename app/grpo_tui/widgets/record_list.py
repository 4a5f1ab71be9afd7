"""Lists over a record: only keys are held, and rows are read when they come on the screen."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message

from grpo_tui.drawing.glyphs import UNICODE, Glyphs
from grpo_tui.record.database import RecordError
from grpo_tui.widgets.row_list import RowList

RowT = TypeVar("RowT")
KeyT = TypeVar("KeyT")

_HELD_ROWS = 4_000
_READ_AHEAD = 20
_MAX_READ = 400


class KeyedList(RowList, Generic[KeyT]):
    """A list whose cursor stays on its row when others come or go around it."""

    DEFAULT_CSS = """
    KeyedList { border-top: solid $border-blurred; border-title-color: $foreground; }
    KeyedList:focus { border-top: solid $border; border-title-style: bold; }
    KeyedList.-ascii { border-top: ascii $border-blurred; }
    KeyedList.-ascii:focus { border-top: ascii $border; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter", "choose", "Open", key_display="Enter", id="list.choose", tooltip="Open the row"
        ),
    ]

    def __init__(self, glyphs: Glyphs = UNICODE, *, id: str | None = None) -> None:
        super().__init__(glyphs, id=id)
        self.set_class(glyphs.raster == "ascii", "-ascii")
        self._keys: Sequence[KeyT] = ()

    def count(self) -> int:
        return len(self._keys)

    @property
    def current_key(self) -> KeyT | None:
        """The key under the cursor."""
        return self._keys[self.cursor] if self.cursor < len(self._keys) else None

    def set_keys(self, keys: Sequence[KeyT], *, stay_first: bool = False) -> None:
        """Replaces the keys. The cursor keeps its row and its place on the screen.

        With `stay_first` a cursor on the first row stays on the first row, whatever that is now.
        """
        key, row = self.current_key, self.cursor - round(self.scroll_y)
        # Rows that came at the top have moved all others by as many: a guess that spares a search
        # through a million keys.
        guess = self.cursor + len(keys) - len(self._keys)
        self._keys = keys
        if stay_first and self.cursor == 0:
            index = 0
        elif 0 <= guess < len(keys) and keys[guess] == key:
            index = guess
        else:
            found = self._index(key)
            index = max(0, min(self.cursor, len(keys) - 1)) if found is None else found
        with self.prevent(RowList.Moved):
            self.refresh_rows()
            self.cursor = index
        self._scroll_rows(max(0, index - row))
        self.show_cursor()
        if self.current_key != key:
            self.post_message(self.Moved(self, index))

    def select(self, key: KeyT) -> bool:
        """Puts the cursor on `key`; false when the list does not hold it."""
        index = self._index(key)
        if index is not None:
            self.cursor = index
        return index is not None

    def set_title(self, title: Content) -> None:
        """What the list shows, in its upper edge."""
        self.border_title = title

    def action_choose(self) -> None:
        if self.current_key is not None:
            self.post_message(self.Chosen(self, self.cursor))

    def _index(self, key: KeyT | None) -> int | None:
        if key is None:
            return None
        try:
            return self._keys.index(key)
        except ValueError:
            return None


class RecordList(KeyedList[int], Generic[RowT]):
    """Rows that `read` fetches by key and `draw` turns into text."""

    @dataclass
    class Unreadable(Message):
        """Rows could not be read."""

        error: str

    def __init__(
        self,
        read: Callable[[Sequence[int]], Awaitable[Mapping[int, RowT]]],
        draw: Callable[[RowT, int], Content],
        glyphs: Glyphs = UNICODE,
        *,
        id: str | None = None,
    ) -> None:
        super().__init__(glyphs, id=id)
        self._read = read
        self._draw = draw
        self._rows: dict[int, RowT | None] = {}
        self._fresh: set[int] = set()
        self._loading = False

    def renew(self) -> None:
        """Rows may have changed: those on the screen are read again, and shown until then."""
        self._fresh.clear()
        self.refresh()

    def forget(self) -> None:
        """The keys will mean other rows."""
        self._rows.clear()
        self._fresh.clear()
        self.set_keys(())
        self.scroll_to(y=0, animate=False, force=True, immediate=True)

    def draw_row(self, index: int, width: int, selected: bool) -> Content:
        key = self._keys[index]
        if key not in self._fresh:
            self._load()
        cursor = self.glyphs.row_cursor if selected else " "
        if key not in self._rows:
            return Content.styled(f"{cursor}{self.glyphs.ellipsis}", "$foreground 40%")
        row = self._rows[key]
        if row is None:
            return Content.styled(f"{cursor}no longer in the record", "$foreground 40%")
        return Content.assemble((cursor, "$text-accent"), self._draw(row, max(0, width - 1)))

    def _load(self) -> None:
        if not self._loading:
            self._loading = True
            self.run_worker(self._load_visible(), group="rows", exit_on_error=False)

    async def _load_visible(self) -> None:
        """Reads what is on the screen until nothing is missing there, wherever it scrolls to."""
        try:
            while missing := self._missing():
                rows = await self._read(missing)
                if len(self._rows) > _HELD_ROWS:
                    self._rows.clear()
                    self._fresh.clear()
                self._rows.update({key: rows.get(key) for key in missing})
                self._fresh.update(missing)
                self.refresh()
        except RecordError as error:
            self.post_message(self.Unreadable(str(error)))
        finally:
            self._loading = False

    def _missing(self) -> list[int]:
        top = round(self.scroll_y)
        height = min(_MAX_READ, max(1, self.size.height))
        seen = self._keys[top : top + height]
        if all(key in self._fresh for key in seen):
            return []
        around = self._keys[max(0, top - _READ_AHEAD) : top + height + _READ_AHEAD]
        return [key for key in around if key not in self._fresh]
