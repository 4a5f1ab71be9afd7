"""The supervisor over a real child: whatever the child does, the dashboard lives and tells."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from grpo_protocol.commands import Pause, Resume, SaveCheckpoint, Set, Stop
from grpo_tui.child.command_pipe import MAX_BACKLOG_BYTES
from grpo_tui.state.run_state import RunStatus
from supervised import supervised


def task_names() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks()}


async def test_whole_run(tmp_path: Path) -> None:
    async with supervised("--steps", "6", "--interval", "0", cwd=tmp_path) as run:
        state = await run.ended()
    assert state.status is RunStatus.COMPLETE
    assert state.progress.step == 6
    assert len(state.series["reward"]) == 6
    assert len(state.samples) == 48
    assert run.exits == [0]
    assert state.faults.malformed == 0


async def test_commands_are_numbered_and_live_through_their_stages(tmp_path: Path) -> None:
    async with supervised("--steps", "100000", "--interval", "0.01", cwd=tmp_path) as run:
        await run.until(lambda state: state.progress.step > 0)
        assert run.supervisor.send(Pause()) == 1
        assert run.state.status is RunStatus.PAUSING
        await run.until(lambda state: state.status is RunStatus.PAUSED)
        assert run.supervisor.send(SaveCheckpoint()) == 2
        await run.until(lambda state: state.commands.commands[1].stage == "applied")
        assert (
            run.state.commands.commands[1].path
            == f"outputs/fake/checkpoint-{run.state.progress.step}"
        )
        assert run.supervisor.send(Resume()) == 3
        await run.until(lambda state: state.status is RunStatus.RUNNING)
        assert run.supervisor.send(Stop()) == 4
        state = await run.ended()
    assert state.status is RunStatus.STOPPED
    assert [command.stage for command in state.commands.commands] == ["applied"] * 4


async def test_trainer_that_never_acknowledges_is_paused_and_stopped(tmp_path: Path) -> None:
    words = ("--steps", "100000", "--interval", "0.01", "--no-acks")
    async with supervised(*words, cwd=tmp_path) as run:
        await run.until(lambda state: state.progress.step > 0)
        run.supervisor.send(Pause())
        await run.until(lambda state: state.status is RunStatus.PAUSED)
        run.supervisor.send(Stop())
        assert (await run.ended()).status is RunStatus.STOPPED


async def test_child_gets_pipes_a_session_of_its_own_and_quiet_surroundings(tmp_path: Path) -> None:
    program = (
        "import os,sys;print([os.getsid(0)==os.getpid(),sys.stdin.isatty(),"
        "*[os.environ[n] for n in ('GRPO_TUI_MODE','MLX_TUI_MODE','NO_COLOR','TERM',"
        "'PYTHONUNBUFFERED','PYTHONIOENCODING')]])"
    )
    async with supervised(cwd=tmp_path, argv=[sys.executable, "-c", program]) as run:
        await run.ended()
    assert "[True, False, '1', '1', '1', 'dumb', '1', 'utf-8']" in run.texts()


async def test_r20_ctrl_c_for_the_dashboard_does_not_reach_the_trainer(tmp_path: Path) -> None:
    async with supervised("--steps", "100000", cwd=tmp_path) as run:
        await run.until(lambda state: state.progress.step > 0)
        assert run.supervisor.pid is not None
        assert os.getpgid(run.supervisor.pid) != os.getpgid(0)
        assert os.getsid(run.supervisor.pid) == run.supervisor.pid


async def test_w23_r01_line_of_5_mb_arrives_and_an_endless_one_is_skipped(tmp_path: Path) -> None:
    words = ("--steps", "2", "--misbehave", "long-line", "--misbehave", "over-long-line")
    async with supervised(*words, "--interval", "0", cwd=tmp_path) as run:
        state = await run.ended()
    first = next(iter(state.samples))
    assert first.completion.startswith("xxx")
    assert first.completion.endswith("(4,900,000 more characters)")
    assert state.faults.oversized == 1
    assert state.progress.step == 2


async def test_r04_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    words = ("--steps", "2", "--misbehave", "invalid-utf8", "--misbehave", "split-utf8")
    async with supervised(*words, "--interval", "0", cwd=tmp_path) as run:
        state = await run.ended()
    assert state.faults.invalid_utf8 == 2
    assert "�� plain" in run.texts()
    assert "bad � byte" in run.texts()
    assert "joined ✓ again" in run.texts()
    assert state.progress.step == 2


async def test_unknown_json_and_stray_prints_are_log_lines(tmp_path: Path) -> None:
    words = ("--steps", "2", "--misbehave", "unknown-json", "--misbehave", "stray-print")
    async with supervised(*words, "--interval", "0", cwd=tmp_path) as run:
        state = await run.ended()
    assert "hello from a reward function" in run.texts()
    assert (state.faults.malformed, state.faults.stray) == (3, 2)
    assert len(state.series["loss"]) == 2


async def test_progress_bar_on_stderr_is_one_line(tmp_path: Path) -> None:
    words = ("--steps", "1", "--interval", "0", "--misbehave", "progress-bar")
    async with supervised(*words, cwd=tmp_path) as run:
        state = await run.ended()
    lines = [(line.level, line.text) for line in state.logs if line.source == "stderr"]
    assert lines == [("info", "100%|###|")]


async def test_w27_closed_stderr_is_read_no_more_and_nothing_is_lost(tmp_path: Path) -> None:
    words = ("--steps", "100000", "--interval", "0.01", "--misbehave", "close-stderr")
    async with supervised(*words, cwd=tmp_path) as run:
        await run.until(lambda state: "the trainer closed its stderr" in run.texts())
        await run.until(lambda state: "trainer-stderr" not in task_names())
        seen = run.state.progress.step
        await run.until(lambda state: state.progress.step >= seen + 10)
        run.supervisor.send(Stop())
        assert (await run.ended()).status is RunStatus.STOPPED


async def test_w27_closed_stdout_of_a_living_child_is_told_and_it_can_be_stopped(
    tmp_path: Path,
) -> None:
    words = ("--steps", "100000", "--interval", "0.02", "--misbehave", "close-stdout")
    async with supervised(*words, cwd=tmp_path) as run:
        await run.until(lambda state: "the trainer closed its stdout" in run.texts())
        assert run.supervisor.alive
        run.supervisor.send(Stop())
        assert (await run.ended()).exit_code == 0


async def test_w27_grandchild_that_holds_the_pipes_does_not_hold_the_end(tmp_path: Path) -> None:
    words = ("--steps", "3", "--interval", "0", "--misbehave", "hold-pipes")
    async with supervised(*words, cwd=tmp_path) as run:
        await run.until(lambda state: state.exit_code is not None)
        state = await run.ended()
    assert state.status is RunStatus.COMPLETE
    assert state.progress.step == 3


async def test_flood_arrives_whole(tmp_path: Path) -> None:
    async with supervised("--steps", "1", "--flood", "50000", cwd=tmp_path) as run:
        await run.ended()
    flood = [text for text in run.texts() if text.startswith("flood line")]
    assert run.state.logs.next_number > 50_000
    assert flood[-1] == "flood line 49999"


async def test_w20_command_to_a_deaf_trainer_is_whole_or_reported(tmp_path: Path) -> None:
    words = ("--steps", "100000", "--interval", "0.02", "--misbehave", "deaf")
    async with supervised(*words, cwd=tmp_path) as run:
        await run.until(lambda state: state.progress.step > 0)
        long = Set("sample_display", "x" * 50_000)
        accepted = 0
        while run.supervisor.send(long) is not None:
            accepted += 1
            assert accepted * 50_000 < MAX_BACKLOG_BYTES + 200_000
        assert run.state.commands.commands[-1].error == "the trainer does not read its commands"
        assert run.supervisor.alive
        run.supervisor.kill_now()
        state = await run.ended()
    assert all(command.stage == "failed" for command in state.commands.commands)


async def test_w20_command_without_a_trainer_is_reported(tmp_path: Path) -> None:
    async with supervised("--steps", "1", "--interval", "0", cwd=tmp_path) as run:
        await run.ended()
        assert run.supervisor.send(Pause()) is None
    assert run.state.commands.commands[-1].error == "no trainer is running"


async def test_setting_that_cannot_be_a_line_is_reported(tmp_path: Path) -> None:
    async with supervised("--steps", "100000", cwd=tmp_path) as run:
        await run.until(lambda state: state.progress.step > 0)
        assert run.supervisor.send(Set("a", "b\nSTOP")) is None
        assert run.state.commands.commands[-1].stage == "failed"


async def test_refused_input_is_shown_with_its_line(tmp_path: Path) -> None:
    async with supervised("--refuse", "group_size=1: must be at least 2", cwd=tmp_path) as run:
        state = await run.ended()
    assert state.status is RunStatus.FAILED
    assert state.failure == "group_size=1: must be at least 2"
    assert run.exits == [2]


async def test_program_that_does_not_exist(tmp_path: Path) -> None:
    async with supervised(cwd=tmp_path, argv=["/nonexistent/trainer"]) as run:
        state = await run.ended()
    assert state.status is RunStatus.FAILED
    assert state.failure is not None
    assert "/nonexistent/trainer" in state.failure
    assert run.exits == [None]


async def test_fault_in_the_state_is_raised_at_once_and_not_swallowed(tmp_path: Path) -> None:
    async with supervised("--steps", "100000", cwd=tmp_path) as run:
        await run.until(lambda state: state.progress.step > 0)
        run.state.series = None  # type: ignore[assignment]
        with pytest.raises((TypeError, AttributeError)):
            await run.ended()
