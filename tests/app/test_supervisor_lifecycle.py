"""How a trainer is ended, let go of, and started again."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from grpo_protocol.codec import encode_event
from grpo_protocol.commands import Set
from grpo_protocol.messages import EpochStart, Failed
from grpo_tui.launch import RestartRule
from grpo_tui.notices import QuitStage, RestartGivenUp, RestartScheduled
from grpo_tui.state.run_state import RunStatus
from supervised import FAKE, PATIENCE, supervised

ENDLESS = ("--steps", "100000", "--interval", "0.02")
RESTARTING = RestartRule(enabled=True, resume=True)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_quit_asks_first_and_the_trainer_saves(tmp_path: Path) -> None:
    async with supervised(*ENDLESS, cwd=tmp_path) as run:
        await run.until(lambda state: state.progress.step > 0)
        before = time.time()
        await run.supervisor.quit(patience=60.0)
        state = await run.ended()
    assert state.status is RunStatus.STOPPED
    assert state.exit_code == 0
    assert state.last_checkpoint is not None
    stages = [item for item in run.items if isinstance(item, QuitStage)]
    assert [stage.rung for stage in stages] == ["stop"]
    assert stages[0].deadline is not None
    assert stages[0].deadline >= before + 60.0


async def test_trainer_that_ignores_stop_gets_sigterm_after_the_patience(tmp_path: Path) -> None:
    async with supervised(*ENDLESS, "--misbehave", "ignore-stop", cwd=tmp_path) as run:
        await run.until(lambda state: state.progress.step > 0)
        await run.supervisor.quit(patience=0.05)
        state = await run.ended()
    assert state.exit_code == -signal.SIGTERM
    assert state.status is RunStatus.STOPPED
    rungs = [item.rung for item in run.items if isinstance(item, QuitStage)]
    assert rungs == ["stop", "terminate"]


async def test_trainer_that_ignores_everything_is_killed(tmp_path: Path) -> None:
    words = (*ENDLESS, "--misbehave", "ignore-stop", "--misbehave", "ignore-term")
    async with supervised(*words, cwd=tmp_path, terminate_patience=0.05) as run:
        await run.until(lambda state: state.progress.step > 0)
        await run.supervisor.quit(patience=0.05)
        state = await run.ended()
    assert state.exit_code == -signal.SIGKILL
    rungs = [item.rung for item in run.items if isinstance(item, QuitStage)]
    assert rungs == ["stop", "terminate", "kill"]


async def test_hurry_goes_one_rung_on(tmp_path: Path) -> None:
    async with supervised(*ENDLESS, "--misbehave", "ignore-stop", cwd=tmp_path) as run:
        await run.until(lambda state: state.progress.step > 0)
        quitting = asyncio.create_task(run.supervisor.quit(patience=600.0))
        await run.until(lambda state: state.quit is not None)
        assert run.state.status is RunStatus.STOPPING
        assert run.state.quit_remaining is not None
        assert run.state.quit_remaining > 500
        run.supervisor.hurry()
        await quitting
        assert (await run.ended()).exit_code == -signal.SIGTERM


async def test_kill_now_from_the_first_rung(tmp_path: Path) -> None:
    words = (*ENDLESS, "--misbehave", "ignore-stop", "--misbehave", "ignore-term")
    async with supervised(*words, cwd=tmp_path) as run:
        await run.until(lambda state: state.progress.step > 0)
        quitting = asyncio.create_task(run.supervisor.quit(patience=600.0))
        await run.until(lambda state: state.quit is not None)
        run.supervisor.kill_now()
        await quitting
        assert (await run.ended()).exit_code == -signal.SIGKILL


async def test_detached_trainer_finishes_its_run_alone(tmp_path: Path) -> None:
    done = tmp_path / "done"
    words = ("--steps", "30", "--interval", "0.01", "--done-file", str(done))
    async with supervised(*words, cwd=tmp_path) as run:
        await run.until(lambda state: state.progress.step > 0)
        run.supervisor.detach()
        state = await run.ended()
        assert state.detached
        assert run.exits == [None]
        async with asyncio.timeout(PATIENCE):
            while not done.exists() or done.read_text() != "completed":
                await asyncio.sleep(0.01)


async def test_cancelled_supervisor_leaves_the_trainer_alive(tmp_path: Path) -> None:
    async with supervised(*ENDLESS, cwd=tmp_path) as run:
        await run.until(lambda state: state.progress.step > 0)
        pid = run.supervisor.pid
        assert pid is not None
        run.task.cancel()
        await asyncio.wait({run.task})
        assert not is_gone(pid)
        os.kill(pid, signal.SIGKILL)


async def test_crash_is_restarted_in_its_folder_and_given_up_at_last(tmp_path: Path) -> None:
    words = ("--steps", "9", "--interval", "0", "--kill-at", "2")
    async with supervised(*words, cwd=tmp_path, rule=RESTARTING) as run:
        state = await run.ended()
    assert state.restarts == 5
    assert state.status is RunStatus.CRASHED
    assert run.exits == [-9]
    given_up = [item.reason for item in run.items if isinstance(item, RestartGivenUp)]
    assert given_up == ["5 restarts within 10 minutes did not help"]
    # Each restart began at step 1 again, and no step is charted twice.
    assert [point.step for point in state.series["reward"].points()] == [1, 2]


def dies_once(*words: str) -> list[str]:
    """The fake trainer, which notes its words in `argv` and dies in its first life."""
    program = (
        "import os,sys,runpy;sys.argv=sys.argv[1:];died=os.path.exists('argv');"
        "open('argv','w').write(' '.join(sys.argv[1:]));"
        "sys.argv+=[] if died else ['--kill-at','2'];"
        "sys.path.insert(0,os.path.dirname(sys.argv[0]));"
        "runpy.run_path(sys.argv[0],run_name='__main__')"
    )
    return [sys.executable, "-c", program, str(FAKE), *words]


async def test_restart_resumes_in_the_same_folder_and_ends_clean(tmp_path: Path) -> None:
    argv = dies_once("--steps", "4", "--interval", "0")
    async with supervised(cwd=tmp_path, argv=argv, rule=RESTARTING) as run:
        state = await run.ended()
    assert state.status is RunStatus.COMPLETE
    assert state.restarts == 1
    assert run.exits == [0]
    words = (tmp_path / "argv").read_text()
    assert words == "--steps 4 --interval 0 --resume latest --output-dir outputs/fake"
    assert [mark.kind for mark in state.marks].count("restart") == 1


async def test_program_of_another_gets_no_added_words(tmp_path: Path) -> None:
    argv = dies_once("--steps", "4", "--interval", "0")
    rule = RestartRule(enabled=True, resume=False)
    async with supervised(cwd=tmp_path, argv=argv, rule=rule) as run:
        state = await run.ended()
    assert state.restarts == 1
    assert (tmp_path / "argv").read_text() == "--steps 4 --interval 0"


async def test_w28_sample_mode_is_sent_again_after_a_restart(tmp_path: Path) -> None:
    words = ("--steps", "100000", "--interval", "0.02", "--kill-at", "8")
    async with supervised(*words, cwd=tmp_path, rule=RESTARTING) as run:
        await run.until(lambda state: state.progress.step > 0)
        run.supervisor.send(Set("sample_display", "random"))
        await run.until(lambda state: state.restarts == 1)
        await run.until(
            lambda state: (
                [c.text for c in state.commands.commands].count("SET sample_display=random") == 2
            )
        )
        await run.until(
            lambda state: run.texts().count("setting sample_display is random now") == 2
        )
        assert run.state.sample_mode == "random"


async def test_restart_can_be_cancelled_or_brought_forward(tmp_path: Path) -> None:
    words = ("--steps", "9", "--interval", "0", "--kill-at", "2")
    options = {"cwd": tmp_path, "rule": RESTARTING, "back_off": (600.0,)}
    async with supervised(*words, **options) as run:  # type: ignore[arg-type]
        await run.until(lambda state: state.restart is not None)
        assert run.state.status is RunStatus.RESTARTING
        run.supervisor.restart_now()
        await run.until(lambda state: state.restarts == 1 and state.restart is not None)
        run.supervisor.cancel_restart()
        state = await run.ended()
    assert state.status is RunStatus.CRASHED
    assert [item.attempt for item in run.items if isinstance(item, RestartScheduled)] == [1, 2]


async def test_quit_while_a_restart_waits_ends_at_once(tmp_path: Path) -> None:
    words = ("--steps", "9", "--interval", "0", "--kill-at", "2")
    async with supervised(*words, cwd=tmp_path, rule=RESTARTING, back_off=(600.0,)) as run:
        await run.until(lambda state: state.restart is not None)
        await run.supervisor.quit()
        await run.ended()
    assert run.state.restarts == 0


async def test_failure_before_training_is_not_restarted(tmp_path: Path) -> None:
    async with supervised("--exit-at", "0", cwd=tmp_path, rule=RESTARTING) as run:
        state = await run.ended()
    assert state.restarts == 0
    assert state.failure == "RuntimeError: gone before the first step (exit code 1)"


async def test_orderly_failure_without_a_step_is_not_restarted(tmp_path: Path) -> None:
    told = encode_event(EpochStart(1, 1, 3)) + encode_event(Failed("no memory", 1))
    program = f"import os;os.write(1,{told!r});os._exit(1)"
    argv = [sys.executable, "-c", program]
    async with supervised(cwd=tmp_path, argv=argv, rule=RESTARTING) as run:
        state = await run.ended()
    assert (state.status, state.failure, state.restarts) == (RunStatus.FAILED, "no memory", 0)
    given_up = [item.reason for item in run.items if isinstance(item, RestartGivenUp)]
    assert given_up == ["it failed before it had finished a step"]


async def test_trainer_that_an_outside_signal_stops_cleanly_has_stopped(tmp_path: Path) -> None:
    words = (*ENDLESS, "--misbehave", "stop-on-term")
    async with supervised(*words, cwd=tmp_path, rule=RESTARTING) as run:
        await run.until(lambda state: state.progress.step > 0)
        assert run.supervisor.pid is not None
        os.kill(run.supervisor.pid, signal.SIGTERM)
        state = await run.ended()
    assert run.exits == [143]
    assert (state.status, state.failure, state.restarts) == (RunStatus.STOPPED, None, 0)
    assert not [item for item in run.items if isinstance(item, RestartScheduled)]
