"""The folder of a run: one run, one living writer."""

import fcntl
import os
import signal
import subprocess
from pathlib import Path

import msgspec
import pytest

from grpo_protocol.config_input import ConfigError
from grpo_protocol.messages import Log
from grpo_protocol.run_files import LOCK_NAME
from grpo_trainer.output.run_log import RunLog
from grpo_trainer.run_folder import RunFolder, file_name, new_run_path
from python_process import SECONDS, run_python, start_python

HOLD = """
import sys
from pathlib import Path
from grpo_trainer.run_folder import RunFolder
folder = RunFolder.claim(Path(sys.argv[1]), resume=False)
print("claimed", flush=True)
sys.stdin.read()
"""


def test_a_new_folder_is_named_after_the_run_and_the_time(tmp_path: Path) -> None:
    first = new_run_path("demo", tmp_path, clock=lambda: 0.0)
    assert first.parent == tmp_path
    assert first.name.startswith("demo-19")
    first.mkdir()
    second = new_run_path("demo", tmp_path, clock=lambda: 0.0)
    assert second.name == first.name + "-2"
    second.mkdir()
    assert new_run_path("demo", tmp_path, clock=lambda: 0.0).name == first.name + "-3"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("demo", "demo"),
        ("Qwen/Qwen3-0.6B", "Qwen-Qwen3-0.6B"),
        ("../../etc", "etc"),
        (".hidden", "hidden"),
        ("a\x1b[2Jb", "a-2Jb"),
        ("///", "run"),
        ("日本", "日本"),
        ("é" * 300, "é" * 100),
    ],
)
def test_any_name_makes_one_file_name(name: str, expected: str) -> None:
    assert file_name(name) == expected


def test_a_claimed_folder_says_who_holds_it_and_is_clean_afterwards(tmp_path: Path) -> None:
    with RunFolder.claim(tmp_path / "deep" / "run", resume=False) as folder:
        note = msgspec.json.decode((folder.path / LOCK_NAME).read_bytes())
        assert note["pid"] == os.getpid()
        assert "T" in note["started"]
        (folder.path / "outputs.db").touch()
    assert [entry.name for entry in folder.path.iterdir()] == ["outputs.db"]


def test_a_folder_that_was_made_for_nothing_goes_again(tmp_path: Path) -> None:
    RunFolder.claim(tmp_path / "outputs" / "run", resume=False).release()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    RunFolder.claim(tmp_path / "mine", resume=False).release()
    assert (tmp_path / "mine").is_dir()


@pytest.mark.parametrize("trace", ["outputs.db", "checkpoint-8/", "final/", "emergency-3/"])
def test_a_fresh_start_over_another_run_is_refused_with_the_ways_out(
    tmp_path: Path, trace: str
) -> None:
    target = tmp_path / trace
    target.mkdir() if trace.endswith("/") else target.touch()
    with pytest.raises(ConfigError) as refused:
        RunFolder.claim(tmp_path, resume=False)
    message = str(refused.value)
    assert "\n" not in message
    for part in (str(tmp_path), trace.rstrip("/"), "--resume", "--output-dir"):
        assert part in message
    assert not (tmp_path / LOCK_NAME).exists()
    RunFolder.claim(tmp_path, resume=True).release()


def test_the_log_file_of_a_run_counts_as_a_run_but_a_dataset_does_not(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"prompt":"1+1"}\n')
    (tmp_path / "config.toml").write_text("group_size = 4\n")
    RunFolder.claim(tmp_path, resume=False).release()
    log = RunLog(tmp_path / "run.jsonl")
    log.handle(Log("info", "x"))
    log.close()
    with pytest.raises(ConfigError, match=r"run\.jsonl"):
        RunFolder.claim(tmp_path, resume=False)


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_living_writer_is_refused(tmp_path: Path, resume: bool) -> None:
    with start_python(HOLD, str(tmp_path)) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"claimed\n"
        with pytest.raises(ConfigError, match=f"pid {holder.pid}"):
            RunFolder.claim(tmp_path, resume=resume)
        assert (tmp_path / LOCK_NAME).exists()
        holder.stdin.close()
        holder.wait(SECONDS)
    RunFolder.claim(tmp_path, resume=resume).release()


def test_R30_a_killed_writer_leaves_no_lock(tmp_path: Path) -> None:
    with start_python(HOLD, str(tmp_path)) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.send_signal(signal.SIGKILL)
        holder.wait(SECONDS)
    assert (tmp_path / LOCK_NAME).exists()
    RunFolder.claim(tmp_path, resume=False).release()


def test_S06_a_stale_note_with_a_living_foreign_pid_is_no_lock(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        for content in (f'{{"pid":{stranger.pid},"started":"x"}}', '{"pid":-1}', "0", "text", ""):
            (tmp_path / LOCK_NAME).write_text(content)
            RunFolder.claim(tmp_path, resume=False).release()
        assert stranger.poll() is None
        stranger.kill()


def test_a_lock_file_removed_while_it_was_being_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder before us may end between our opening the file and locking it."""
    flock, calls = fcntl.flock, 0

    def slow_flock(fd: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            (tmp_path / LOCK_NAME).unlink()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", slow_flock)
    folder = RunFolder.claim(tmp_path, resume=False)
    with pytest.raises(ConfigError, match="another run"):
        RunFolder.claim(tmp_path, resume=False)
    folder.release()


def test_a_forked_child_that_lives_on_holds_no_lock(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from grpo_trainer.run_folder import RunFolder
folder = RunFolder.claim(Path(sys.argv[1]), resume=False)
gate, release = os.pipe()
told, tell = os.pipe()
if (child := os.fork()) == 0:
    os.close(release)
    folder.release()
    os.write(tell, b"x")
    os.read(gate, 1)
    os._exit(0)
os.read(told, 1)
assert (folder.path / "run.lock").exists()
os.close(folder._lock_fd)
again = RunFolder.claim(Path(sys.argv[1]), resume=False)
os.close(release)
os.waitpid(child, 0)
"""
    done = run_python(code, str(tmp_path))
    assert done.returncode == 0, done.stderr.decode()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/nowhere")):
        with pytest.raises(ConfigError, match="choose a folder") as refused:
            RunFolder.claim(path, resume=False)
        assert str(path) in str(refused.value)
        assert "\n" not in str(refused.value)
