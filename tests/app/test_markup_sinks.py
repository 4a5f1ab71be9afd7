"""No text that is not ours may be read as markup: looks at the source of the dashboard.

In Textual an unclosed bracket in a label, a title or a toast ends the app, and a completion could
plant a clickable action. So what is not a literal goes in as `Content` or with `markup=False`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import grpo_tui

SOURCES = sorted(Path(grpo_tui.__file__).parent.rglob("*.py"))
WIDGETS = {"Static", "Label", "Button", "Checkbox", "OptionList", "TabPane", "Collapsible"}
BANNED = {"from_markup", "RichLog", "Markdown", "DataTable", "Tree", "SelectionList"}
TITLES = {"border_title", "border_subtitle"}
SAFE_CALLS = {"Content", "assemble", "styled", "truncate", "join"}


def content_names(tree: ast.AST) -> set[str]:
    """Parameters that are declared to be `Content`."""
    return {
        node.arg
        for node in ast.walk(tree)
        if isinstance(node, ast.arg)
        and isinstance(node.annotation, ast.Name)
        and node.annotation.id == "Content"
    }


def is_safe(node: ast.expr, safe_names: set[str]) -> bool:
    """A literal, or something that is or makes `Content`."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name in safe_names
        case ast.IfExp(body=body, orelse=orelse):
            return is_safe(body, safe_names) and is_safe(orelse, safe_names)
        case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
            return name in SAFE_CALLS
        case _:
            return False


def has_markup_off(call: ast.Call) -> bool:
    return any(
        keyword.arg == "markup"
        and isinstance(keyword.value, ast.Constant)
        and keyword.value.value is False
        for keyword in call.keywords
    )


def faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    names = content_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                if name in BANNED:
                    yield node.lineno, f"{name} reads markup"
                if name == "notify" and not has_markup_off(node):
                    yield node.lineno, "notify without markup=False"
                texts = node.args[:1] if name in WIDGETS else []
                if any(not is_safe(text, names) for text in texts) and not has_markup_off(node):
                    yield node.lineno, f"{name} takes a text that may hold markup"
                if name == "Static" and not texts and not has_markup_off(node):
                    yield node.lineno, "Static is updated later, so it needs markup=False"
            case ast.Assign(targets=[ast.Attribute(attr=attribute)], value=value):
                if attribute in TITLES and not is_safe(value, names):
                    yield node.lineno, f"{attribute} may hold markup"
            case _:
                pass


def test_no_foreign_text_reaches_markup() -> None:
    found = [
        f"{path.name}:{line}: {what}"
        for path in SOURCES
        for line, what in faults(ast.parse(path.read_text("utf-8")))
    ]
    assert found == []


def test_the_look_at_the_source_sees_each_kind_of_fault() -> None:
    for source in (
        "self.notify(text)",
        "yield Static(f'{x}')",
        "yield Static(id='later')",
        "yield Label(name)",
        "Button(label, id='x')",
        "self.border_title = f'{x}'",
        "self.border_subtitle = name if name else None",
        "RichLog()",
        "Content.from_markup(x)",
    ):
        assert list(faults(ast.parse(source))), source
    for source in (
        "self.notify(text, markup=False)",
        "yield Static(f'{x}', markup=False)",
        "yield Label('plain')",
        "Button(Content(label))",
        "self.border_title = Content(name)",
    ):
        assert not list(faults(ast.parse(source))), source
