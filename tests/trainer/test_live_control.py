"""Commands to a real trainer: acknowledged at once, applied between steps, never lost."""

from pathlib import Path
from typing import Any

from grpo_protocol.messages import (
    Ack,
    Checkpoint,
    Complete,
    Generation,
    Paused,
    PhaseChange,
    Resumed,
    Step,
)
from live_runs import GATED_REWARD, applied, position, stop


def test_every_command_is_acknowledged_with_its_line_and_applied(start: Any) -> None:
    trainer = start()
    trainer.wait_for(Step)
    trainer.send("SET sample_display=best_worst", "SAVE_CHECKPOINT", "PAUSE")
    paused = trainer.wait_for(Paused)
    trainer.send("RESUME")
    trainer.wait_for(Resumed)
    trainer.wait_for(Step, lambda step: step.step > paused.step + 1)
    stop(trainer)
    acks = trainer.all(Ack)
    names = ["SET sample_display", "SAVE_CHECKPOINT", "PAUSE", "RESUME", "STOP"]
    assert [(ack.line, ack.command, ack.ok) for ack in acks] == [
        (line, name, True) for line, name in enumerate(names, start=1)
    ]
    for ack in acks:
        done = applied(trainer, ack.line)
        assert (done.command, done.ok) == (ack.command, True)
        assert position(trainer, ack) < position(trainer, done)
        assert ack.step is not None
        assert done.step is not None
        assert done.step >= ack.step - 1
    saved = applied(trainer, 2)
    assert saved.path is not None
    assert Path(saved.path, "manifest.json").exists()
    assert Path(saved.path).name == f"checkpoint-{saved.step}"


def test_W21_paused_is_said_when_the_loop_stands(start: Any, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(GATED_REWARD)
    trainer = start()
    trainer.wait_for(PhaseChange, lambda event: event.phase == "scoring")
    trainer.send("PAUSE")
    trainer.wait_for(Ack)
    assert not trainer.all(Paused), "the step is still running"
    (tmp_path / "go").write_text("")
    paused = trainer.wait_for(Paused)
    assert paused.step == 1
    trainer.send("SAVE_CHECKPOINT", "SAVE_CHECKPOINT", "RESUME")
    trainer.wait_for(Step, lambda step: step.step == 2)
    stop(trainer)
    events = trainer.events()
    first, last = position(trainer, paused), position(trainer, trainer.all(Resumed)[0])
    assert isinstance(trainer.all(Step)[0], Step)
    assert position(trainer, trainer.all(Step)[0]) < first
    kinds = {type(event) for event in events[first:last]}
    assert not kinds & {Step, Generation}
    phases = {e.phase for e in events[first:last] if isinstance(e, PhaseChange)}
    assert phases <= {"saving"}


def test_pausing_twice_and_resuming_twice_change_nothing(start: Any) -> None:
    trainer = start()
    trainer.wait_for(Step)
    trainer.send("PAUSE", "PAUSE", "SET temperature=0.7", "RESUME", "RESUME")
    applied(trainer, 5)
    stop(trainer)
    assert len(trainer.all(Paused)) == len(trainer.all(Resumed)) == 1
    messages = [ack.message for ack in trainer.all(Ack)]
    assert "no change" in (messages[1] or "")
    assert "no change" in (messages[4] or "")
    assert all(applied(trainer, line).ok for line in range(1, 7))


def test_while_paused_saves_and_settings_act_at_once(start: Any, tmp_path: Path) -> None:
    trainer = start()
    trainer.wait_for(Step)
    trainer.send("PAUSE")
    paused = trainer.wait_for(Paused)
    trainer.send("SAVE_CHECKPOINT")
    saved = applied(trainer, 2)
    assert (saved.ok, saved.path) == (True, str(tmp_path / "run" / f"checkpoint-{paused.step}"))
    trainer.send("SET learning_rate=2e-6")
    changed = applied(trainer, 3)
    assert (changed.ok, changed.step) == (True, paused.step + 1)
    stop(trainer)
    assert trainer.all(Complete)[0].total_steps == paused.step
    assert not trainer.all(Resumed)


def test_before_the_first_step_there_is_nothing_to_save(start: Any, tmp_path: Path) -> None:
    trainer = start()
    trainer.send("SAVE_CHECKPOINT", "STOP")
    assert trainer.wait() == 0
    save, halt = trainer.all(Ack)
    assert (save.ok, save.message) == (False, "nothing to save before the first step")
    assert halt.ok
    (complete,) = trainer.all(Complete)
    assert (complete.total_steps, complete.status) == (0, "stopped")
    assert not trainer.all(Checkpoint)
    assert not list((tmp_path / "run").glob("*/"))


def test_W21_M03_what_cannot_be_is_refused_and_training_goes_on(start: Any) -> None:
    trainer = start()
    trainer.send("PUASE", "SET group_size=1", "SET temperature=-1", "SET tempreature=1", "")
    trainer.wait_for(Ack, lambda ack: ack.line == 5)
    step = trainer.wait_for(Step).step
    trainer.wait_for(Step, lambda event: event.step > step)
    stop(trainer)
    refusals = [ack for ack in trainer.all(Ack) if ack.command != "STOP"]
    assert [ack.ok for ack in refusals] == [False] * 5
    assert "did you mean PAUSE?" in (refusals[0].message or "")
    assert "group_size cannot be changed while training" in (refusals[1].message or "")
    assert "temperature=-1.0" in (refusals[2].message or "")


def test_a_setting_holds_from_the_step_that_was_promised(start: Any) -> None:
    trainer = start()
    trainer.wait_for(Step)
    trainer.send("SET learning_rate=0.25", "SET sample_display=best_worst")
    rate_from, display_from = (applied(trainer, line).step or 0 for line in (1, 2))
    trainer.wait_for(Step, lambda event: event.step == display_from + 1)
    stop(trainer)
    for step in trainer.all(Step):
        assert step.learning_rate == (0.25 if step.step >= rate_from else 1e-5)
    shown = [event.step for event in trainer.all(Generation)]
    assert [shown.count(step) for step in (display_from - 1, display_from)] == [8, 2]


def test_a_setting_sent_while_a_step_runs_is_promised_for_the_next(
    start: Any, tmp_path: Path
) -> None:
    (tmp_path / "reward.py").write_text(GATED_REWARD)
    trainer = start()
    trainer.wait_for(PhaseChange, lambda event: event.phase == "scoring")
    trainer.send("SET learning_rate=0.25")
    promised = trainer.wait_for(Ack).step
    (tmp_path / "go").write_text("")
    assert applied(trainer, 1).step == promised == 2
    trainer.wait_for(Step, lambda event: event.step == 2)
    stop(trainer)
    assert [step.learning_rate for step in trainer.all(Step)][:2] == [1e-5, 0.25]


def test_W22_merged_and_split_commands_all_count(start: Any) -> None:
    trainer = start()
    trainer.wait_for(Step)
    trainer.send_bytes(b"SET temperature=0.9\nSET sample_display=random\nPAU")
    trainer.wait_for(Ack, lambda ack: ack.line == 2)
    trainer.send_bytes(b"SE\nRESUME\r\nST")
    trainer.wait_for(Ack, lambda ack: ack.line == 4)
    trainer.send_bytes(b"OP\n")
    assert trainer.wait() == 0
    assert [ack.command for ack in trainer.all(Ack)] == [
        "SET temperature",
        "SET sample_display",
        "PAUSE",
        "RESUME",
        "STOP",
    ]
    assert all(ack.ok for ack in trainer.all(Ack))
