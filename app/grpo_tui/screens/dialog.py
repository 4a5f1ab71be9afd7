"""What all dialogs share: the doors to quit stay open, and the frame suits the terminal."""

from typing import ClassVar, TypeVar

from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

ResultT = TypeVar("ResultT")


class Dialog(ModalScreen[ResultT]):
    """A modal screen from which one can always quit."""

    CSS_PATH = "dialog.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "ctrl+c,ctrl+q",
            "app.quit",
            "Quit",
            show=False,
            id="dialog.quit",
            tooltip="Quit, stop or detach",
        ),
    ]
