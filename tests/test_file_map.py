"""The file map of the README has one line for each source file: its path and what it is for.

`GRPO_UPDATE_FILE_MAP=1 pytest tests/test_file_map.py` writes it anew from the module docstrings.
"""

import ast
import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PACKAGES = ("app/grpo_tui", "trainer/grpo_trainer", "protocol/grpo_protocol", "screenshots")
MAP = re.compile(r"(?<=<!-- file map -->\n).*?(?=<!-- end of file map -->)", re.DOTALL)


def first_sentence(path: Path) -> str:
    """What the module docstring says the file is for."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring, f"{path} has no docstring"
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0].rstrip(".:")


def file_map() -> str:
    """The map as it should stand in the README."""
    lines = []
    for package in PACKAGES:
        lines += [f"\n**{package}/**\n", "| file | |", "| --- | --- |"]
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT / package)
            lines.append(f"| `{name}` | {first_sentence(path)} |")
    return "\n".join(lines) + "\n"


def test_the_readme_maps_every_file() -> None:
    text = README.read_text(encoding="utf-8")
    expected = file_map()
    if os.environ.get("GRPO_UPDATE_FILE_MAP"):
        README.write_text(MAP.sub(lambda _: expected, text), encoding="utf-8")
        return
    found = MAP.search(text)
    assert found is not None
    assert found[0] == expected
