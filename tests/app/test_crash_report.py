"""The report of a crash holds the way to the fault, and no secrets."""

import stat
from pathlib import Path

import pytest

from grpo_tui.crash_report import crash_line, redact, write_crash_report
from grpo_tui.paths import state_dir


def fault() -> Exception:
    prompt_in_a_local = "the user's secret prompt"
    try:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError(f"bad token=abc123 after {len(prompt_in_a_local)}") from error
    except ValueError as error:
        return error


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_report_has_the_chain_but_no_locals_and_is_private(tmp_path: Path) -> None:
    path = write_crash_report(fault())
    assert path is not None
    assert path.is_relative_to(tmp_path / "grpo-tui")
    text = path.read_text()
    assert "KeyError" in text
    assert "ValueError" in text
    assert "in fault" in text
    assert "abc123" not in text
    assert "= the user's secret" not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "secret", ["hf_AbCdEfGhIjKl", "sk-abcdefgh12345678", "API_KEY: hunter2", "password=hunter2"]
)
def test_credentials_are_taken_out(secret: str) -> None:
    assert redact(f"before {secret} after") == "before <redacted> after"


def test_home_folder_is_not_named() -> None:
    assert redact(f"{Path.home()}/runs/x").startswith("~")


def test_line_tells_fault_and_report() -> None:
    error = fault()
    line = crash_line(error, Path("/tmp/report.txt"))
    assert "ValueError" in line
    assert "/tmp/report.txt" in line
    assert "\n" not in line


def test_folder_that_cannot_be_written_is_no_second_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert write_crash_report(fault()) is None


def test_relative_state_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_dir() == Path.home() / ".local" / "state" / "grpo-tui"
