"""Who hears what: the two modes, what is said before anyone listens, and how often."""

import threading

import pytest

from grpo_protocol import Event, GRPOConfig
from grpo_protocol.messages import Complete, Log, PhaseChange, Status
from grpo_trainer.output.reporter import Reporter, event_mode


@pytest.mark.parametrize(
    ("option", "environ", "on"),
    [
        (None, {}, False),
        (True, {}, True),
        (None, {"GRPO_TUI_MODE": "1"}, True),
        (None, {"MLX_TUI_MODE": "1"}, True),
        (None, {"GRPO_TUI_MODE": "true"}, True),
        (None, {"GRPO_TUI_MODE": "0"}, False),
        (None, {"GRPO_TUI_MODE": ""}, False),
        (False, {"GRPO_TUI_MODE": "1"}, False),
        (True, {"GRPO_TUI_MODE": "0"}, True),
    ],
)
def test_W25_the_option_wins_over_the_environment(
    option: bool | None, environ: dict[str, str], on: bool
) -> None:
    assert event_mode(GRPOConfig(tui_mode=option), environ) is on


def test_without_a_config_the_environment_decides() -> None:
    assert event_mode(None, {"MLX_TUI_MODE": "1"})
    assert not event_mode(None, {})


def opened() -> tuple[Reporter, list[Event]]:
    reporter = Reporter()
    heard: list[Event] = []
    reporter.open(events=False, console=None)
    reporter.listen(heard.append)
    return reporter, heard


def test_what_is_said_too_early_is_told_in_order() -> None:
    reporter = Reporter()
    heard: list[Event] = []
    reporter.listen(heard.append)
    reporter.status("loading")
    reporter.log("warn", "slow")
    assert heard == []
    assert not reporter.is_open
    reporter.open(events=False, console=None)
    reporter.log("info", "later")
    assert heard == [Status("loading", "loading"), Log("warn", "slow"), Log("info", "later")]


def test_what_another_thread_says_while_opening_is_neither_lost_nor_early() -> None:
    reporter = Reporter()
    heard: list[Event] = []
    others: list[threading.Thread] = []

    def listen(event: Event) -> None:
        if not others:
            others.append(threading.Thread(target=reporter.log, args=("info", "later")))
            others[0].start()
            others[0].join(0.2)  # it cannot get through before the rest is told
        heard.append(event)

    reporter.listen(listen)
    reporter.log("info", "first")
    reporter.log("info", "second")
    reporter.open(events=False, console=None)
    others[0].join()
    assert heard == [Log("info", text) for text in ("first", "second", "later")]


def test_everybody_hears_everything() -> None:
    reporter, first = opened()
    second: list[Event] = []
    reporter.listen(second.append)
    reporter.emit(Complete(3, 1.0))
    assert first == second == [Complete(3, 1.0)]


def test_a_phase_is_told_at_once_and_its_progress_seldom() -> None:
    reporter, heard = opened()
    for done in range(1000):
        reporter.phase(1, "generating", done, 1000)
    reporter.phase(1, "scoring")
    reporter.phase(2, "generating", 0, 1000)
    phases = [event for event in heard if isinstance(event, PhaseChange)]
    assert phases[0] == PhaseChange(1, "generating", 0, 1000)
    assert phases[-2:] == [PhaseChange(1, "scoring"), PhaseChange(2, "generating", 0, 1000)]
    assert len(phases) < 100


def test_what_rewards_print_says_so() -> None:
    reporter, heard = opened()
    reporter.reward_output("stdout", "hi")
    reporter.reward_output("notice", "the worker was started again")
    assert heard == [
        Log("info", "hi", "reward"),
        Log("warn", "the worker was started again", "reward"),
    ]
