"""Three rooms that know of each other only what the contracts say."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import grpo_protocol
from python_process import run_python

IMPORT_ALL = """
import importlib, pkgutil, sys

package = importlib.import_module(sys.argv[1])
left_out = sys.argv[2].split(",")
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if module.name not in left_out and not module.name.endswith(".__main__"):
        importlib.import_module(module.name)
print(*sorted(sys.modules))
"""


def modules_after(code: str, *args: str) -> set[str]:
    result = run_python(code, *args)
    assert result.returncode == 0, result.stderr.decode()
    return set(result.stdout.decode().split())


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.fresh
def test_the_dashboard_never_imports_the_trainer_or_mlx() -> None:
    found = packages(modules_after(IMPORT_ALL, "grpo_tui", ""))
    assert {"grpo_tui", "grpo_protocol", "textual"} <= found
    assert not found & {"grpo_trainer", "mlx", "mlx_lm", "transformers", "safetensors", "numpy"}


@pytest.mark.fresh
def test_the_trainer_never_imports_the_dashboard() -> None:
    found = packages(modules_after(IMPORT_ALL, "grpo_trainer", ""))
    assert {"grpo_trainer", "grpo_protocol", "mlx", "mlx_lm"} <= found
    assert not found & {"grpo_tui", "textual", "aiosqlite"}


@pytest.mark.fresh
def test_a_console_without_a_terminal_costs_no_rich() -> None:
    assert "rich" not in packages(
        modules_after("import sys, grpo_trainer.output.console; print(*sys.modules)")
    )


@pytest.mark.fresh
def test_the_contracts_import_msgspec_alone() -> None:
    found = packages(modules_after(IMPORT_ALL, "grpo_protocol", ""))
    before = packages(modules_after("import sys; print(*sys.modules)"))
    of_msgspec = packages(modules_after("import sys, msgspec; print(*sys.modules)"))
    others = found - before - of_msgspec - set(sys.stdlib_module_names)
    assert others == {"grpo_protocol"}


def imported_names(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: a relative import"
            assert node.module is not None
            yield node.module


def test_the_contracts_name_the_standard_library_and_msgspec_only() -> None:
    """Imports inside of functions and type checks included."""
    allowed = set(sys.stdlib_module_names) | {"msgspec", "grpo_protocol"}
    files = list(Path(grpo_protocol.__file__).parent.rglob("*.py"))
    assert files
    for path in files:
        names = {name.partition(".")[0] for name in imported_names(path)}
        assert names <= allowed, path.name


@pytest.mark.fresh
@pytest.mark.parametrize(
    "module", ["grpo_trainer", "grpo_trainer.cli", "grpo_trainer.rewards.worker", "grpo_tui.cli"]
)
def test_a_start_costs_no_mlx(module: str) -> None:
    found = packages(modules_after(f"import sys, {module}; print(*sys.modules)"))
    assert not found & {"mlx", "mlx_lm", "transformers", "numpy"}
