"""When a trainer is started again, and with which words."""

import pytest

from grpo_tui.child.restart_policy import NoRestart, Restart, RestartPolicy, resume_argv


def delays(policy: RestartPolicy, times: list[float]) -> list[float | None]:
    made = []
    for now in times:
        decision = policy.decide(-9, asked=False, trained=True, now=now)
        made.append(decision.delay if isinstance(decision, Restart) else None)
    return made


def test_back_off_grows_and_five_within_ten_minutes_are_the_most() -> None:
    policy = RestartPolicy(enabled=True)
    assert delays(policy, [0, 10, 20, 30, 40, 50]) == [5, 15, 60, 60, 60, None]
    assert delays(policy, [700]) == [5]


def test_hundred_good_steps_forget_earlier_restarts_and_99_do_not() -> None:
    policy = RestartPolicy(enabled=True)
    assert delays(policy, [0]) == [5]
    for _ in range(99):
        policy.step_done()
    assert delays(policy, [10]) == [15]
    for _ in range(100):
        policy.step_done()
    assert delays(policy, [20]) == [5]


@pytest.mark.parametrize(
    ("code", "asked", "trained", "reason"),
    [
        (0, False, True, None),
        (1, True, True, None),
        (-15, True, True, None),
        (2, False, True, "the trainer refused its input"),
        (1, False, False, "it ended before training began (exit code 1)"),
    ],
)
def test_ends_that_are_no_reason_to_restart(
    code: int, asked: bool, trained: bool, reason: str | None
) -> None:
    policy = RestartPolicy(enabled=True)
    assert policy.decide(code, asked=asked, trained=trained, now=0) == NoRestart(reason)


def test_off_means_off() -> None:
    decision = RestartPolicy(enabled=False).decide(-9, asked=False, trained=True, now=0)
    assert decision == NoRestart("automatic restart is off")


@pytest.mark.parametrize(
    ("words", "saved", "expected"),
    [
        ("train", False, "train --resume latest --output-dir runs/a"),
        ("train --output-dir x", False, "train --output-dir x --resume latest"),
        ("train --output-dir=x", False, "train --output-dir=x --resume latest"),
        ("train output_dir=x", False, "train output_dir=x --resume latest"),
        ("train --resume latest", False, "train --resume latest --output-dir runs/a"),
        ("train --resume old/c-7", False, "train --resume old/c-7 --output-dir runs/a"),
        ("train --resume old/c-7 seed=1", True, "train seed=1 --resume latest --output-dir runs/a"),
        ("train --resume seed=1", True, "train seed=1 --resume latest --output-dir runs/a"),
        ("train --resume=old/c-7", True, "train --resume latest --output-dir runs/a"),
        ("train --resume lr=1/c-7 s", True, "train s --resume latest --output-dir runs/a"),
        (
            "train --resume output_store.enabled=true",
            True,
            "train output_store.enabled=true --resume latest --output-dir runs/a",
        ),
    ],
)
def test_restart_goes_on_in_the_same_folder(words: str, saved: bool, expected: str) -> None:
    assert resume_argv(words.split(), "runs/a", saved) == expected.split()


def test_without_a_folder_there_is_nothing_to_resume_from() -> None:
    assert resume_argv(["train"], None, False) == ["train"]
    words = ["train", "--output-dir", "x"]
    assert resume_argv(words, None, False) == [*words, "--resume", "latest"]


def test_failure_that_is_sure_to_come_again_is_no_reason_to_restart() -> None:
    policy = RestartPolicy(enabled=True)
    decision = policy.decide(1, asked=False, trained=True, now=0, sure_failure="it failed again")
    assert decision == NoRestart("it failed again")
