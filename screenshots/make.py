"""Draws the pictures of the README: the real dashboard over a recorded run.

`python screenshots/make.py` plays `demo_run.jsonl` through the fake trainer and writes SVG files
beside itself; `--png` also renders each with rsvg-convert, for a look. The clock of the dashboard
is driven by the run, so that the same recording gives the same files.
"""

import asyncio
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from textual.pilot import Pilot

from grpo_protocol.codec import decode_event
from grpo_protocol.database import DATABASE_NAME, migrate
from grpo_protocol.messages import Generation, Step
from grpo_tui.app import GrpoApp
from grpo_tui.launch import LaunchPlan
from grpo_tui.notices import ChildStarted, Item
from grpo_tui.record.database import DatabaseReader

HERE: Final = Path(__file__).resolve().parent
RECORDING: Final = HERE / "demo_run.jsonl"
FAKE_TRAINER: Final = HERE.parent / "tests" / "support" / "fake_trainer.py"
SIZES: Final = ((120, 40), (80, 24))
START: Final = 1_764_579_600.0
SECONDS_PER_STEP: Final = 0.45
PID: Final = 4242
_PATIENCE: Final = 60.0


@dataclass(frozen=True)
class Shot:
    """One picture: the keys that lead to it."""

    name: str
    keys: tuple[str, ...] = ()


SHOTS: Final = (
    Shot("live"),
    Shot("charts", ("5", "left", "left", "left")),
    Shot("logs", ("1",)),
    Shot("sample", ("j", "j", "enter")),
    Shot("database", ("4", "enter")),
    Shot("quit", ("q",)),
)


async def main(png: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        write_database(run / DATABASE_NAME)
        (run / "run.lock").write_text(json.dumps({"pid": os.getpid(), "started": START}))
        for width, height in SIZES:
            for shot in SHOTS:
                path = HERE / f"{shot.name}-{width}x{height}.svg"
                path.write_text(await take(shot, width, height, run), encoding="utf-8")
                if png:
                    render(path)


class RecordedApp(GrpoApp):
    """The dashboard without what differs from one run to the next."""

    def __init__(self, plan: LaunchPlan) -> None:
        super().__init__(plan, self._time_of_step)

    def _time_of_step(self) -> float:
        return START + SECONDS_PER_STEP * self.state.progress.step

    def receive(self, item: Item) -> None:
        super().receive(ChildStarted(PID) if isinstance(item, ChildStarted) else item)


async def take(shot: Shot, width: int, height: int, run: Path) -> str:
    """The screen after the whole recording and the keys of `shot`, as SVG."""
    fake = shlex.join([sys.executable, str(FAKE_TRAINER)])
    replay = f"{fake} --replay {shlex.quote(str(RECORDING))} --interval 0"
    # The trainer must live on after the last line, or the picture would show a finished run.
    plan = LaunchPlan("live", argv=("sh", "-c", f"{replay}; sleep 600"), cwd=run, name="demo")
    app = RecordedApp(plan)
    async with app.run_test(size=(width, height)) as pilot:
        await until(pilot, lambda: app.state.phase is not None and at_end(app))
        for key in shot.keys:
            await settle(app, pilot)
            await pilot.press(key)
        await settle(app, pilot)
        svg = app.export_screenshot(title="grpo-tui")
        assert app.supervisor is not None
        app.supervisor.kill_now()
        await until(pilot, lambda: not app.workers)
    return svg


def at_end(app: GrpoApp) -> bool:
    """The newest event of the recording has been taken."""
    return app.state.phase is not None and app.state.progress.step == LAST_STEP


async def settle(app: GrpoApp, pilot: Pilot[None]) -> None:
    """Waits until what the last key began is on the screen."""
    for _ in range(3):
        # What one query has read can ask for the next one.
        await pilot.pause(0.15)
        await until(pilot, lambda: all(worker.group == "trainer" for worker in app.workers))
    app.tick()
    await pilot.pause()


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the recording did not come to its end")
        await pilot.pause(0.05)


def recorded() -> tuple[list[Step], list[Generation]]:
    """Steps and completions of the recording."""
    events = [decode_event(line) for line in RECORDING.read_bytes().splitlines()]
    steps = [event for event in events if isinstance(event, Step)]
    return steps, [event for event in events if isinstance(event, Generation)]


LAST_STEP: Final = recorded()[0][-1].step


def write_database(path: Path) -> None:
    """The record that belongs to the recording."""
    steps, generations = recorded()
    db = sqlite3.connect(path)
    migrate(db)
    start = int(START * 1000)
    db.execute(
        "INSERT INTO training_runs (id, name, model_name, config, started_at, total_steps, status)"
        " VALUES ('run-1', 'demo-1', 'demo', '{}', ?, ?, 'running')",
        (start, LAST_STEP),
    )
    for step in steps:
        at = start + int(step.step * SECONDS_PER_STEP * 1000)
        cursor = db.execute(
            "INSERT INTO training_steps (run_id, step, epoch, loss, mean_reward, std_reward,"
            " total_tokens, metrics, state, created_at)"
            " VALUES ('run-1', ?, ?, ?, ?, ?, ?, ?, 'done', ?)",
            (
                step.step,
                step.epoch,
                step.loss,
                step.mean_reward,
                step.std_reward,
                step.total_tokens,
                json.dumps(step.metrics),
                at,
            ),
        )
        db.executemany(
            "INSERT INTO generations (run_id, step_id, batch_index, group_index, prompt,"
            " expected_answer, completion_text, completion_raw, num_tokens, finish_reason, reward,"
            " reward_details, advantage, created_at)"
            " VALUES ('run-1', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    cursor.lastrowid,
                    g.prompt_index,
                    g.group_index,
                    g.prompt,
                    g.expected_answer,
                    g.completion,
                    g.completion,
                    g.tokens,
                    g.finish_reason,
                    g.reward,
                    json.dumps(g.reward_details),
                    g.advantage,
                    at,
                )
                for g in generations
                if g.step == step.step
            ],
        )
    db.commit()
    db.close()


def render(path: Path) -> None:
    """A PNG for a look, beside the temporary files of the system."""
    target = Path(tempfile.gettempdir()) / f"{path.stem}.png"
    # The fonts that the SVG names are not installed everywhere; all stand for a monospaced one.
    text = path.read_text(encoding="utf-8").replace("Fira Code", "DejaVu Sans Mono")
    text = text.replace("<text ", '<text xml:space="preserve" ')
    subprocess.run(
        ["rsvg-convert", "-z", "0.9", "-o", str(target)], input=text.encode(), check=True
    )
    print(target)


if __name__ == "__main__":
    os.environ["TZ"] = "UTC"
    time.tzset()
    if "--png" in sys.argv and shutil.which("rsvg-convert") is None:
        sys.exit("rsvg-convert is not installed; apt install librsvg2-bin")
    # How long a query took differs from one run to the next.
    DatabaseReader.milliseconds = property(lambda reader: 1.0)  # type: ignore[assignment]
    asyncio.run(main("--png" in sys.argv))
