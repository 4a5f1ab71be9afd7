"""Reward functions in files: loading, the worker process, what it survives and what it prints."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from grpo_protocol.config_input import ConfigError
from grpo_trainer.dataset import as_examples, load_dataset
from grpo_trainer.reward_files import parse_spec
from grpo_trainer.reward_wire import Channel, LoadFiles, ScoreBatch, encode
from grpo_trainer.rewards import RewardBatch, RewardError, Scorer, load_scorer
from reward_batches import chat_batch, text_batch

Load = Callable[..., Scorer]


class Output:
    """Lines that a scorer has delivered, from whatever thread."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._news = threading.Condition()

    def __call__(self, stream: str, line: str) -> None:
        with self._news:
            self.lines.append((stream, line))
            self._news.notify_all()

    def expect(self, stream: str, part: str) -> None:
        def found() -> bool:
            return any(part in line for where, line in self.lines if where == stream)

        with self._news:
            assert self._news.wait_for(found, timeout=30), self.lines


@pytest.fixture
def output() -> Output:
    return Output()


@pytest.fixture
def load(tmp_path: Path, output: Output) -> Iterator[Load]:
    """Loads the source of a reward file, and closes the scorer after the test."""
    scorers = []

    def load_source(source: str, name: str = "", **options: Any) -> Scorer:
        path = write(tmp_path, source)
        scorer = load_scorer(f"{path}{name and ':' + name}", on_output=output, **options)
        scorers.append(scorer)
        return scorer

    yield load_source
    for scorer in scorers:
        scorer.close()


def write(folder: Path, source: str, name: str = "my_rewards.py") -> Path:
    """Writes a module, beside one that lets it leave process ids for the test."""
    (folder / "pids.py").write_text(dedent(PIDS))
    path = folder / name
    path.write_text(dedent(source))
    return path


def failure_of(scorer: Scorer, batch: RewardBatch) -> RewardError:
    with pytest.raises(RewardError) as caught:
        scorer.score(batch)
    assert "\n" not in str(caught.value)
    return caught.value


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody collects does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(state.stdout.strip()) and not state.stdout.startswith("Z")


def read_pid(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    return int(path.read_text())


PIDS = """
    import os
    def write_pid(path, pid=None):
        with open(path, "w") as file:
            file.write(f"{pid or os.getpid()}\\n")
"""

EXACT = """
    def exact(completions, answer):
        return [float(text == gold) for text, gold in zip(completions, answer)]
"""


def test_m07_the_gold_answer_of_a_file_reaches_the_function(tmp_path: Path, load: Load) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "1+1", "answer": "2"}\n{"prompt": "2+2", "answer": "4"}\n')
    examples = load_dataset(data)
    scorer = load(EXACT)
    scorer.check(examples)
    answers = [example.columns["answer"] for example in examples]
    assert scorer.score(text_batch(["2", "5"], answer=answers)).total == [1.0, 0.0]


def test_all_reward_functions_of_a_file_or_the_named_ones(load: Load) -> None:
    source = """
        from functools import partial, reduce
        def helper(text): return len(text)
        def _hidden(completions): return [9] * len(completions)
        def lengths(completions, **kwargs): return [helper(text) for text in completions]
        async def ones(completions): return [1] * len(completions)
        threes = partial(lambda n, completions: [n] * len(completions), 3)
    """
    assert load(source).names == ["lengths", "ones"]
    assert load(source).score(text_batch(["ab"])).per_function == {"lengths": [2.0], "ones": [1.0]}
    assert load(source, "threes").score(text_batch(["ab"])).per_function == {"threes": [3.0]}
    assert load(source, "_hidden").names == ["_hidden"]


def test_several_files_make_one_scorer_and_a_file_is_imported_once(
    tmp_path: Path, output: Output
) -> None:
    first = write(tmp_path, 'print("imported")\ndef a(completions): return [1]\n', "first.py")
    first.write_text(first.read_text() + "def b(completions): return [2]\n")
    (tmp_path / "sub").mkdir()
    second = write(tmp_path / "sub", "def c(completions): return [4]\n", "first.py")
    scorer = load_scorer(
        [f"{first}:b", str(second), f"{first}:a"], weights=[1, 10, 100], on_output=output
    )
    assert scorer.names == ["b", "c", "a"]
    assert scorer.score(text_batch(["x"])).total == [142.0]
    scorer.close()
    assert output.lines == [("stdout", "imported")]


def test_the_folder_of_the_file_comes_first_on_the_import_path(tmp_path: Path, load: Load) -> None:
    write(tmp_path, "VALUE = 7", "neighbour.py")
    source = "import neighbour\ndef r(completions): return [neighbour.VALUE]\n"
    assert load(source).score(text_batch(["a"])).total == [7.0]


def test_dataclasses_of_the_file_work(load: Load) -> None:
    source = """
        from __future__ import annotations
        import dataclasses, pickle, typing
        @dataclasses.dataclass
        class Box:
            value: typing.ClassVar[int] = 1
        def r(completions):
            return [pickle.loads(pickle.dumps(Box())).value]
    """
    assert load(source).score(text_batch(["a"])).total == [1.0]


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        ("def r(completions)\n", "", "SyntaxError: expected ':' (my_rewards.py, line 1)"),
        ("import no_such_module_here\n", "", "ModuleNotFoundError: No module named"),
        ("x = 1\ny = 1 / 0\n", "", "ZeroDivisionError: division by zero (line 2)"),
        ("import sys\nsys.exit()\n", "", "SystemExit"),
        ("import os\nos._exit(0)\n", "", "exited with code 0"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "", "died of SIGSEGV"),
        ("", "", "no public function with a `completions` parameter"),
        ("def helper(x): ...\n", "", "it has helper"),
        (EXACT, "exakt", "no `exakt` in it; reward functions found: exact"),
        ("value = 3\n", "value", "`value` is no function but int"),
        ("class R: ...\n", "R", "`R` is no function but a class"),
    ],
)
def test_r29_a_file_that_cannot_be_used_is_refused_with_one_line(
    load: Load, source: str, name: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(source, name)
    message = str(caught.value)
    assert words in message
    assert "my_rewards.py" in message
    assert "\n" not in message


def test_the_traceback_of_a_failed_import_is_kept_as_a_note(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load("def inner():\n    raise ValueError('deep')\ninner()\n")
    assert "in inner" in caught.value.__notes__[0]


def test_the_same_function_twice_and_a_wrong_number_of_weights_are_refused(
    tmp_path: Path, load: Load
) -> None:
    path = write(tmp_path, EXACT)
    with pytest.raises(ConfigError, match="2 functions are named `exact`"):
        load_scorer([str(path), f"{path}:exact"])
    with pytest.raises(ConfigError, match="reward_weights"):
        load(EXACT, weights=[1.0, 2.0])


def test_e18_a_missing_column_is_reported_before_the_run(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"`exact\(completions, answer\)` needs `answer`"):
        load(EXACT).check(as_examples([{"prompt": "a", "solution": "1"}]))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (date(2020, 1, 1), "a date"),
        ((1, 2), "a tuple"),
        ({1: 2}, "a dict with the key 1"),
        ([{"x": b"1"}], "a bytes"),
        (float("nan"), "nan"),
        ("\ud800", "half a surrogate pair"),
    ],
)
def test_a_column_value_that_json_would_change_is_refused_by_name(
    load: Load, value: Any, kind: str
) -> None:
    scorer = load(EXACT)
    with pytest.raises(ConfigError, match=f"row 2: column `answer` holds {kind}"):
        scorer.check(as_examples([{"prompt": "a", "answer": ""}, {"prompt": "b", "answer": value}]))
    failure = failure_of(scorer, text_batch(["a", "b"], answer=["", value]))
    assert f"column `answer` holds {kind}" in str(failure)
    assert failure.row == 1


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
        from grpo_trainer.rewards import completion_texts
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
            print("x" * 3_000_000)
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
        "[a line of 3000000 bytes was left out]",
    ]
    assert written == [*once, "no line endfirst", *once[1:], "no line end"]
    assert output.lines.count(("stderr", "to stderr")) == 2


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


@pytest.mark.parametrize("wait", ["time.sleep(3600)", "while True: pass"])
def test_a_timeout_ends_the_worker_with_all_it_started_and_the_next_step_works(
    tmp_path: Path, load: Load, output: Output, wait: str
) -> None:
    source = f"""
        import subprocess, time
        from pids import write_pid
        def quick(completions): return [1] * len(completions)
        def slow(completions):
            if completions[0] != "hang":
                return [2] * len(completions)
            child = subprocess.Popen(["sleep", "3600"])
            write_pid({str(tmp_path / "worker")!r})
            write_pid({str(tmp_path / "child")!r}, child.pid)
            {wait}
    """
    scorer = load(source, timeout=2.0)
    failure = failure_of(scorer, text_batch(["hang"], step=9))
    assert (failure.function, failure.step) == ("slow", 9)
    assert "not done within reward_timeout=2 s" in str(failure)
    for name in ("worker", "child"):
        pid = read_pid(tmp_path / name)
        wait_until(lambda pid=pid: not runs(pid))  # type: ignore[misc]
    assert scorer.score(text_batch(["a"])).total == [3.0]
    output.expect("notice", "it is started again")


def test_a_worker_that_reads_nothing_does_not_hang_the_trainer(tmp_path: Path, load: Load) -> None:
    source = f"""
        import pids
        pids.write_pid({str(tmp_path / "pid")!r})
        def r(completions): return [1]
    """
    scorer = load(source, timeout=1.0)
    os.kill(read_pid(tmp_path / "pid"), signal.SIGSTOP)
    failure = failure_of(scorer, text_batch(["more than the pipe holds" * 100_000]))
    assert "not done within reward_timeout=1 s" in str(failure)
    assert failure.function is None


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV"),
        ("os._exit(3)", "exited with code 3"),
        ("os._exit(0)", "exited with code 0"),
        ("os.closerange(3, 1000); time.sleep(3600)", "lost its connection"),
    ],
)
def test_a_crash_of_the_worker_is_an_error_that_names_the_function(
    load: Load, output: Output, body: str, words: str
) -> None:
    source = f"""
        import os, signal, time
        def fine(completions): return [1]
        def crash(completions):
            print("last words")
            if completions[0] == "crash":
                {body}
            return [2]
    """
    scorer = load(source)
    failure = failure_of(scorer, text_batch(["crash"], step=2))
    assert (failure.function, failure.step) == ("crash", 2)
    assert words in str(failure)
    assert ("stdout", "last words") in output.lines
    assert scorer.score(text_batch(["a"])).total == [3.0]


def test_a_crash_is_noticed_while_a_forked_child_holds_the_pipes(load: Load) -> None:
    source = """
        import os, time
        def r(completions):
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(5)
    """
    assert "exited with code 5" in str(failure_of(load(source), text_batch(["a"])))


def test_a_worker_that_died_between_steps_is_started_again(
    tmp_path: Path, load: Load, output: Output
) -> None:
    scorer = load(f"import pids\npids.write_pid({str(tmp_path / 'pid')!r})\n{dedent(EXACT)}")
    os.kill(read_pid(tmp_path / "pid"), signal.SIGKILL)
    wait_until(lambda: not scorer._worker.lives())  # type: ignore[attr-defined]
    assert scorer.score(text_batch(["1"], answer=["1"])).total == [1.0]
    output.expect("notice", "the reward worker died of SIGKILL")


def test_a_file_that_has_changed_since_the_start_is_not_used_silently(
    tmp_path: Path, load: Load
) -> None:
    scorer = load("import os\ndef r(completions): os._exit(1)\n")
    failure_of(scorer, text_batch(["a"]))
    write(tmp_path, "def other(completions): return [1]\n")
    assert "other functions now (other)" in str(failure_of(scorer, text_batch(["a"])))
    write(tmp_path, "def r(completions: return [1]\n")
    scorer.close()
    assert "cannot be imported" in str(failure_of(scorer, text_batch(["a"])))


def test_the_worker_inherits_no_descriptor_and_no_terminal(load: Load) -> None:
    source = """
        import os, sys
        def r(completions, fd):
            leaks = []
            for number in fd:
                try:
                    os.fstat(number)
                    leaks.append(number)
                except OSError:
                    pass
            assert not leaks, leaks
            assert sys.stdin.read() == ""
            assert os.getsid(0) == os.getpgid(0) == os.getpid()
            try:
                os.open("/dev/tty", os.O_RDWR)
            except OSError:
                return [1.0]
    """
    # As a process has them whose descriptors were opened by code that knows nothing of us.
    fds = [os.dup2(2, number, inheritable=True) for number in (200, 201)]
    try:
        scorer = load(source)
        batch = text_batch(["a"])
        batch.columns["fd"] = [fds[0]]
        assert scorer.score(batch).total == [1.0]
    finally:
        for fd in fds:
            os.close(fd)


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


def test_an_interrupted_step_does_not_leave_its_reply_to_the_next_one(
    tmp_path: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = load("def r(completions): return [len(c) for c in completions]\n")
    worker = scorer._worker  # type: ignore[attr-defined]

    def interrupted(deadline: float | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scorer.score(text_batch(["aaaaa"]))
    monkeypatch.undo()
    assert scorer.score(text_batch(["a"])).total == [1.0]


PARENT = """
import sys
from grpo_trainer.rewards import RewardBatch, load_scorer
scorer = load_scorer(sys.argv[1])
scorer.score(RewardBatch(["p"], ["c"], [[1]], {}, 1, ["stop"]))
"""


@pytest.mark.parametrize("wait", ["time.sleep(3600)", "signal.pause()"])
def test_the_worker_dies_with_the_trainer(tmp_path: Path, wait: str) -> None:
    source = f"""
        import signal, time
        from pids import write_pid
        def r(completions):
            write_pid({str(tmp_path / "pid")!r})
            {wait}
    """
    path = write(tmp_path, source)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(path)])
    pid = read_pid(tmp_path / "pid")
    parent.kill()
    parent.wait()
    wait_until(lambda: not runs(pid))


def start_worker(request_fd: int, reply_fd: int, parent: int) -> "subprocess.Popen[bytes]":
    fds = (request_fd, reply_fd)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "grpo_trainer.reward_worker", *map(str, (*fds, parent))],
        pass_fds=fds,
        start_new_session=True,
        stderr=subprocess.PIPE,
    )


def test_the_end_of_the_pipe_ends_a_busy_worker_too(tmp_path: Path) -> None:
    source = f"""
        import time
        from pids import write_pid
        def r(completions):
            write_pid({str(tmp_path / "pid")!r})
            time.sleep(3600)
    """
    specs = [parse_spec(str(write(tmp_path, source)))]
    (request_read, requests), (replies, reply_write) = os.pipe(), os.pipe()
    worker = start_worker(request_read, reply_write, os.getpid())
    for fd in (request_read, reply_write):
        os.close(fd)
    channel = Channel(replies, requests)
    channel.send(encode(LoadFiles(specs)))
    channel.send(encode(ScoreBatch(text_batch(["a"]))))
    read_pid(tmp_path / "pid")
    for fd in (requests, replies):
        os.close(fd)
    worker.communicate(timeout=30)
    assert worker.returncode == -signal.SIGKILL


def test_a_worker_whose_trainer_is_gone_at_once_does_not_start() -> None:
    (request_read, requests), (replies, reply_write) = os.pipe(), os.pipe()
    worker = start_worker(request_read, reply_write, parent=1)
    _, stderr = worker.communicate(timeout=30)
    for fd in (request_read, requests, replies, reply_write):
        os.close(fd)
    assert b"the trainer is gone" in stderr


def test_closing_lets_the_worker_end_by_itself_and_twice_is_fine(
    tmp_path: Path, load: Load, output: Output
) -> None:
    source = """
        import atexit
        atexit.register(print, "said goodbye")
        def r(completions): return [1]
    """
    scorer = load(source)
    scorer.close()
    scorer.close()
    assert output.lines == [("stdout", "said goodbye")]
