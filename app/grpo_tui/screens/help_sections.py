"""Which classes' keys the help shows, and under which titles."""

from typing import Final

from textual.dom import DOMNode

from grpo_tui.screens.generation import GenerationScreen
from grpo_tui.screens.live import LiveScreen
from grpo_tui.screens.quit_dialog import QuitDialog
from grpo_tui.screens.sample_detail import SampleDetail
from grpo_tui.screens.stop_dialog import StopDialog
from grpo_tui.screens.trainer_prompt import TrainerPrompt
from grpo_tui.widgets.database_view import DatabaseView
from grpo_tui.widgets.log_view import LogView
from grpo_tui.widgets.row_list import RowList

HELP_SECTIONS: Final[list[tuple[str, type[DOMNode]]]] = [
    ("Run, tabs, views", LiveScreen),
    ("Lists", RowList),
    ("Logs", LogView),
    ("Database", DatabaseView),
    ("One completion", SampleDetail),
    ("One recorded completion", GenerationScreen),
    ("Quit dialog", QuitDialog),
    ("While stopping", StopDialog),
    ("Question of the trainer", TrainerPrompt),
]
