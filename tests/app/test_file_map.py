"""The file map in app/README.md names each file, and no file that is not there."""

import re
from pathlib import Path

APP = Path(__file__).parents[2] / "app"


def test_file_map_and_folder_agree() -> None:
    package = APP / "grpo_tui"
    files = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.name != "__init__.py"
    }
    named = set(re.findall(r"^\| `([\w/]+\.py)` \|", (APP / "README.md").read_text(), re.MULTILINE))
    assert named == files
