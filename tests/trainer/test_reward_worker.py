"""What reward functions from files see, print and raise inside of the worker."""

from pathlib import Path
from typing import Any

import pytest

import reward_workers
from grpo_trainer.rewards.loading import load_scorer
from reward_batches import chat_batch, text_batch
from reward_workers import Load, Output, failure_of, write

load, output = reward_workers.load, reward_workers.output


def test_e15_values_reach_the_function_as_they_are(load: Load) -> None:
    values: list[Any] = [
        1,
        1.5,
        "1",
        None,
        [1, [2]],
        {"a": {"b": 1}},
        True,
        10**30,
        -0.0,
        "é\u2028\0",
    ]
    source = """
        def r(completions, value):
            return [float(repr(v) == text) for v, text in zip(value, completions)]
    """
    batch = text_batch([repr(value) for value in values], value=values)
    assert load(source).score(batch).total == [1.0] * len(values)


def test_completions_take_the_form_of_their_prompts_here_too(load: Load) -> None:
    source = """
        from grpo_trainer.rewards.batch import completion_texts
        def form(prompts, completions):
            assert isinstance(completions[0], str) == isinstance(prompts[0], str)
            return [len(text) for text in completion_texts(completions)]
    """
    scorer = load(source)
    assert scorer.score(text_batch(["ab"])).total == [2.0]
    assert scorer.score(chat_batch(["abc"])).total == [3.0]


def test_r07_model_text_of_any_kind_gets_through(load: Load) -> None:
    source = "def r(completions): return [float(c == 'a\\ufffd\\0b') for c in completions]\n"
    assert load(source).score(text_batch(["a\ud800\0b", "x"])).total == [1.0, 0.0]


def test_one_function_cannot_change_what_the_next_one_sees(load: Load) -> None:
    source = """
        def vandal(completions, answer):
            answer[0]["x"] = 2
            completions.clear()
            return [0]
        def witness(completions, answer):
            return [float(completions == ["a"] and answer == [{"x": 1}])]
    """
    assert load(source).score(text_batch(["a"], answer=[{"x": 1}])).total == [1.0]


def test_each_function_is_called_once_a_step_in_one_process(load: Load) -> None:
    source = """
        calls = []
        def first(completions):
            calls.append("first")
            return [calls.count("first")] * len(completions)
        async def second(completions):
            calls.append("second")
            return [calls.count("second")] * len(completions)
    """
    scorer = load(source)
    for step in (1, 2, 3):
        scores = scorer.score(text_batch(["a"] * 5, step=step))
        assert scores.per_function == {"first": [step] * 5, "second": [step] * 5}


def test_m31_signal_alarms_work_inside_of_a_reward(load: Load) -> None:
    source = """
        import signal, time
        class Late(Exception): ...
        def on_alarm(number, frame): raise Late
        def r(completions):
            signal.signal(signal.SIGALRM, on_alarm)
            scores = []
            for text in completions:
                signal.setitimer(signal.ITIMER_REAL, 0.05 if text == "slow" else 60)
                try:
                    if text == "slow":
                        signal.pause()
                    scores.append(1.0)
                except Late:
                    scores.append(0.5)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            return scores
    """
    assert load(source).score(text_batch(["fast", "slow", "fast"])).total == [1.0, 0.5, 1.0]


def test_prints_become_lines_and_break_nothing(load: Load, output: Output) -> None:
    source = """
        import os, sys
        print("while importing")
        def r(completions):
            print("first\\nsecond é")
            print("to stderr", file=sys.stderr)
            os.write(1, b"raw \\xff bytes\\r\\n")
            print("\\ud800")
            print("x" * 5_000_000)
            print("no line end", end="")
            return [1]
    """
    scorer = load(source)
    assert scorer.score(text_batch(["a"])).total == [1.0]
    assert scorer.score(text_batch(["a"])).total == [1.0]
    scorer.close()
    assert output.lines[0] == ("stdout", "while importing")
    written = [line for stream, line in output.lines if stream == "stdout"][1:]
    once = [
        "first",
        "second é",
        "raw \ufffd bytes",
        "\\ud800",
        "(a line of 5000000 bytes was left out)",
    ]
    assert written == [*once, "no line endfirst", *once[1:], "no line end"]
    assert output.lines.count(("stderr", "to stderr")) == 2


def test_a_progress_bar_becomes_its_last_look(load: Load, output: Output) -> None:
    source = """
        def r(completions):
            for percent in range(101):
                print(f"\\r{percent} %", end="")
            print()
            return [1]
    """
    scorer = load(source)
    scorer.score(text_batch(["a"]))
    scorer.close()
    assert output.lines[-1] == ("stdout", "100 %")
    assert len(output.lines) < 10


def test_a_listener_that_fails_does_not_stop_the_scoring(tmp_path: Path) -> None:
    def on_output(stream: str, line: str) -> None:
        raise RuntimeError

    path = write(tmp_path, "def r(completions):\n    print('x' * 200_000)\n    return [1]\n")
    scorer = load_scorer(str(path), on_output=on_output)
    assert [scorer.score(text_batch(["a"])).total for _ in range(3)] == [[1.0]] * 3
    scorer.close()


def test_without_a_listener_prints_go_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "def r(completions):\n    print('seen')\n    return [1]\n")
    scorer = load_scorer(str(path))
    scorer.score(text_batch(["a"]))
    scorer.close()
    assert capsys.readouterr() == ("", "seen\n")


@pytest.mark.parametrize(
    ("body", "row", "words"),
    [
        ("raise ValueError('bad\\nvalue')", None, "ValueError: bad value"),
        ("raise SystemExit(0)", None, "SystemExit: 0"),
        ("raise KeyboardInterrupt", None, "KeyboardInterrupt"),
        ("return [1, float('nan')]", 1, "returned nan"),
        ("return ['1', 2]", 0, "returned '1' (str)"),
        ("return [1]", None, "returned 1 scores for 2"),
    ],
)
def test_r29_a_failing_function_is_an_error_and_the_worker_lives_on(
    load: Load, body: str, row: int | None, words: str
) -> None:
    source = f"""
        calls = []
        def r(completions):
            calls.append(1)
            if completions[0] == "bad":
                {body}
            return [len(calls)] * len(completions)
    """
    scorer = load(source)
    failure = failure_of(scorer, text_batch(["bad", "a"], step=4))
    assert (failure.function, failure.step, failure.row) == ("r", 4, row)
    assert words in str(failure)
    assert ("Traceback" in failure.detail) == body.startswith("raise")
    assert scorer.score(text_batch(["a", "b"])).total == [2.0, 2.0]


def test_the_worker_does_not_import_mlx(load: Load) -> None:
    source = """
        import sys
        def r(completions): return [float(any(name.split(".")[0] == "mlx" for name in sys.modules))]
    """
    assert load(source).score(text_batch(["a"])).total == [0.0]


def test_a_batch_far_above_the_size_of_a_pipe(load: Load) -> None:
    source = "def r(completions): return [len(c) for c in completions]\n"
    sizes = [40_000_000, 1]
    assert load(source).score(text_batch(["é" * size for size in sizes])).total == sizes
