"""What the state says about commands and about the life of the trainer's process."""

import pytest

from grpo_protocol.commands import Answer, Command, Pause, Resume, SaveCheckpoint, Set, Stop
from grpo_protocol.messages import (
    Ack,
    Applied,
    Checkpoint,
    Choice,
    Complete,
    Eval,
    Failed,
    Log,
    Paused,
    Prompt,
    Resumed,
)
from grpo_tui.notices import (
    ChildExited,
    ChildStarted,
    CommandSent,
    CommandUnsent,
    QuitStage,
    RestartGivenUp,
    RestartScheduled,
    SampleModeChosen,
    SpawnFailed,
)
from grpo_tui.run_summary import exit_code_of, left_behind_lines, summary_lines
from grpo_tui.state.run_state import RunStatus
from run_feed import Feed


@pytest.fixture
def feed() -> Feed:
    feed = Feed()
    feed.running(steps=10)
    feed.steps(1, 2)
    return feed


def stages(feed: Feed) -> list[tuple[str, str]]:
    return [(command.name, command.stage) for command in feed.state.commands.commands]


def test_w21_pausing_until_the_loop_really_stands_still(feed: Feed) -> None:
    assert feed(CommandSent(1, Pause())).status is RunStatus.PAUSING
    assert feed(Ack(1, "PAUSE", True, step=3)).status is RunStatus.PAUSING
    assert stages(feed) == [("PAUSE", "acknowledged")]
    feed.steps(3, 3)
    assert feed.state.status is RunStatus.PAUSING
    assert feed(Paused(3), Applied(1, "PAUSE", True)).status is RunStatus.PAUSED
    assert stages(feed) == [("PAUSE", "applied")]
    assert feed(CommandSent(2, Resume())).status is RunStatus.RESUMING
    assert feed(Resumed(3), Applied(2, "RESUME", True)).status is RunStatus.RUNNING


def test_plain_events_complete_commands_of_a_trainer_that_never_acknowledges(feed: Feed) -> None:
    feed(CommandSent(1, Pause()), Paused(2), CommandSent(2, Resume()), Resumed(2))
    feed(CommandSent(3, SaveCheckpoint()), Checkpoint("c/checkpoint-2", 2))
    feed(CommandSent(4, Stop()), Complete(2, 1.0))
    assert [stage for _, stage in stages(feed)] == ["applied"] * 4
    assert feed.state.status is RunStatus.STOPPED


def test_answers_meet_their_line_not_just_their_name(feed: Feed) -> None:
    feed(CommandSent(1, SaveCheckpoint()), CommandSent(2, SaveCheckpoint()))
    feed(Applied(2, "SAVE_CHECKPOINT", False, "disk full"), Ack(9, "SAVE_CHECKPOINT", True))
    first, second = feed.state.commands.commands
    assert first.stage == "asked"
    assert (second.stage, second.error) == ("failed", "disk full")
    assert any("SAVE_CHECKPOINT: disk full" in text for text in feed.log_texts())


def test_refused_command_is_failed_with_the_trainers_words(feed: Feed) -> None:
    feed(CommandSent(1, Set("temprature", "2")), Ack(1, "SET temprature", False, "no such key"))
    assert feed.state.commands.commands[0].error == "no such key"


def test_command_that_was_not_written_is_a_failure_on_screen(feed: Feed) -> None:
    feed(CommandUnsent(None, Pause(), "no trainer is running"))
    assert stages(feed) == [("PAUSE", "failed")]
    assert feed.state.status is RunStatus.RUNNING
    assert any("PAUSE was not sent: no trainer is running" in text for text in feed.log_texts())


def test_no_change_pause_does_not_show_as_pausing_after_resume(feed: Feed) -> None:
    feed(CommandSent(1, Pause()), Ack(1, "PAUSE", True), Paused(2))
    feed(CommandSent(2, Pause()), Ack(2, "PAUSE", True, "already paused"))
    feed(CommandSent(3, Resume()), Ack(3, "RESUME", True), Resumed(2))
    assert feed.state.status is RunStatus.RUNNING


def test_applied_setting_changes_config_and_marks_the_chart(feed: Feed) -> None:
    feed(CommandSent(1, Set("group_size", "8")), Ack(1, "SET group_size", True, step=3))
    assert feed.state.config[0].value == "4"
    feed(Applied(1, "SET group_size", True, step=3))
    assert (feed.state.config[0].value, feed.state.config[0].is_default) == ("8", False)
    assert [(m.step, m.text) for m in feed.state.marks if m.kind == "setting"] == [
        (3, "group_size=8")
    ]


def test_w28_both_sides_start_in_mode_all_and_the_view_follows_the_choice(feed: Feed) -> None:
    assert feed.state.sample_mode == "all"
    assert feed(SampleModeChosen("random")).sample_mode == "random"
    assert feed(CommandSent(1, Set("sample_display", "best_worst"))).sample_mode == "best_worst"


def test_pause_does_not_count_in_step_times(feed: Feed) -> None:
    feed.clock.move(1.0)
    feed(Paused(2))
    feed.clock.move(500.0)
    feed(Resumed(2))
    feed.steps(3, 3, seconds=1.0)
    assert list(feed.state.times.durations) == [2.0, 2.0, 2.0]


def test_question_waits_until_its_answer_was_sent(feed: Feed) -> None:
    choices = [Choice("a,b", "A\x1b[2J"), Choice("c", "C", "why")]
    feed(Prompt("q1", "Which?", choices, False, [1, 7]))
    question = feed.state.questions[0]
    assert question.options[0].value == "a,b"
    assert question.options[0].label == "A␛[2J"
    assert question.default == (1,)
    feed(CommandSent(1, Answer("q1", ("c",))))
    assert feed.state.questions == []


@pytest.mark.parametrize(
    ("code", "status", "shell"),
    [
        (0, RunStatus.COMPLETE, 0),
        (1, RunStatus.CRASHED, 1),
        (2, RunStatus.FAILED, 2),
        (-9, RunStatus.CRASHED, 137),
        (-11, RunStatus.CRASHED, 139),
        (143, RunStatus.CRASHED, 143),
    ],
)
def test_end_by_itself(feed: Feed, code: int, status: RunStatus, shell: int) -> None:
    state = feed(ChildExited(code, asked=False))
    assert state.status is status
    assert exit_code_of(state) == shell
    assert (state.failure is None) == (code == 0)


def test_exit_2_shows_the_last_line_of_stderr(feed: Feed) -> None:
    feed(Log("error", "lr=-1: must be above 0", "stderr"), ChildExited(2, asked=False))
    assert feed.state.failure == "lr=-1: must be above 0 (exit code 2)"


def test_failed_event_says_why_and_survives_the_exit(feed: Feed) -> None:
    feed(Failed("reward raised", 1, hint="see run.log"), Log("warn", "bye", "stderr"))
    state = feed(ChildExited(1, asked=False))
    assert state.status is RunStatus.FAILED
    assert state.failure == "reward raised; see run.log"


def test_stop_that_ends_with_an_error_is_not_shown_as_stopped(feed: Feed) -> None:
    feed(CommandSent(1, Stop()))
    assert feed.state.status is RunStatus.STOPPING
    assert feed(ChildExited(1, asked=True)).status is RunStatus.CRASHED


def test_killed_by_the_quit_ladder_is_stopped(feed: Feed) -> None:
    feed(QuitStage("stop", 1060.0))
    feed.clock.now = 1020.0
    assert feed.state.status is RunStatus.STOPPING
    assert feed.state.quit_remaining == 40.0
    assert feed(ChildExited(-15, asked=True)).status is RunStatus.STOPPED


def test_pending_commands_fail_with_the_trainer(feed: Feed) -> None:
    feed(CommandSent(1, SaveCheckpoint()), ChildExited(-9, asked=False))
    assert stages(feed) == [("SAVE_CHECKPOINT", "failed")]
    feed(ChildStarted(2, restart=1), CommandSent(1, Pause()), Ack(1, "PAUSE", True))
    assert stages(feed)[1] == ("PAUSE", "acknowledged")


def test_restart_counts_down_and_clears_the_old_failure(feed: Feed) -> None:
    feed(ChildExited(-9, asked=False), RestartScheduled(1, feed.clock.now + 5.0))
    assert feed.state.status is RunStatus.RESTARTING
    feed.clock.move(2.0)
    assert feed.state.restart_remaining == 3.0
    state = feed(ChildStarted(2, restart=1))
    assert state.status is RunStatus.STARTING
    assert (state.restarts, state.failure, state.exit_code) == (1, None, None)


def test_restart_given_up_shows_the_crash_again(feed: Feed) -> None:
    feed(ChildExited(-9, asked=False), RestartScheduled(1, 1.0), RestartGivenUp("cancelled"))
    assert feed.state.status is RunStatus.CRASHED
    assert feed.state.failure is not None
    assert "SIGKILL" in feed.state.failure


def test_program_that_cannot_start_is_failed() -> None:
    state = Feed()(SpawnFailed("cannot start trainr: No such file or directory"))
    assert state.status is RunStatus.FAILED
    assert exit_code_of(state) == 1


def test_summary_tells_folder_checkpoint_and_how_to_go_on(feed: Feed) -> None:
    feed(Checkpoint("runs/my run/checkpoint-2", 2))
    feed(Complete(2, 4.0, "stopped"), ChildExited(0, asked=True))
    first, second = summary_lines(feed.state)
    assert first == "run my run: stopped after 2 steps, folder runs/my run"
    assert second == (
        "last checkpoint runs/my run/checkpoint-2; go on with the same command and "
        "--resume latest --output-dir 'runs/my run'"
    )


def test_summary_tells_what_training_has_changed(feed: Feed) -> None:
    def result(step: int, reward: float, correct: float | None, length: float) -> Eval:
        rewards = {"eval/rewards/correctness/mean": correct, "eval/rewards/brevity/mean": length}
        return Eval(step, "held-out", 200, {"eval/reward": reward, **rewards, "eval/x": 1.0})

    feed(result(0, 0.325, 0.25, -2.0))
    assert "held-out" not in "".join(summary_lines(feed.state))
    feed(result(1, 0.5, None, -2.0), result(2, 0.991, 0.99, 0.5))
    feed(Checkpoint("runs/a/checkpoint-2", 2), Complete(2, 4.0), ChildExited(0, asked=False))
    assert summary_lines(feed.state)[1] == (
        "held-out: correctness 25.0 % → 99.0 %, brevity -2.00 → 0.500, reward 0.325 → 0.991"
    )


def test_lines_after_a_signal_name_the_process_that_goes_on(feed: Feed) -> None:
    assert left_behind_lines(feed.state) == ["training goes on without the dashboard, process 4711"]
    feed(Checkpoint("runs/a/checkpoint-2", 2))
    assert left_behind_lines(feed.state) == [
        "run a: goes on without the dashboard after 2 steps, process 4711",
        "folder runs/a",
    ]
    feed(Complete(2, 4.0), ChildExited(0, asked=False))
    assert left_behind_lines(feed.state) == summary_lines(feed.state)


def test_every_status_has_a_word_and_signs_of_one_cell() -> None:
    for status in RunStatus:
        assert status.word
        assert len(status.glyph) == 1
        assert status.ascii_glyph.isascii()
    assert len({status.ascii_glyph for status in RunStatus}) == len(RunStatus)


def test_all_commands_have_a_life(feed: Feed) -> None:
    commands: list[Command] = [Pause(), Resume(), SaveCheckpoint(), Stop(), Set("a", "b")]
    for line, command in enumerate(commands, start=1):
        feed(CommandSent(line, command))
    assert [stage for _, stage in stages(feed)] == ["asked"] * 5
