"""The life of the reward worker: timeouts, crashes, restarts, and its end."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

import reward_workers
from grpo_trainer.rewards.files import parse_spec
from grpo_trainer.rewards.frames import Channel, LoadFiles, ScoreBatch, encode
from reward_batches import text_batch
from reward_workers import EXACT, Load, Output, failure_of, read_pid, runs, wait_until, write

load, output = reward_workers.load, reward_workers.output


@pytest.mark.parametrize(
    "wait", ["time.sleep(3600)", "while True: pass", "sum(itertools.repeat(0))"]
)
def test_a_timeout_ends_the_worker_with_all_it_started_and_the_next_step_works(
    tmp_path: Path, load: Load, output: Output, wait: str
) -> None:
    source = f"""
        import itertools, subprocess, time
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
        import os
        def r(completions, fd):
            leaks = []
            for number in fd:
                try:
                    os.fstat(number)
                    leaks.append(number)
                except OSError:
                    pass
            assert not leaks, leaks
            assert os.path.samestat(os.fstat(0), os.stat(os.devnull))
            assert os.getsid(0) == os.getpgid(0) == os.getpid()
            try:
                os.open("/dev/tty", os.O_RDWR)
            except OSError:
                return [1.0]
    """
    # As code opens descriptors that knows nothing of us; standard input is a pipe for the moment.
    stdin = os.dup(0)
    other_end, pipe = os.pipe()
    os.dup2(other_end, 0)
    leak = os.dup2(pipe, 200, inheritable=True)
    try:
        assert load(source).score(text_batch(["a"], fd=[leak])).total == [1.0]
    finally:
        os.dup2(stdin, 0)
        for fd in (stdin, other_end, pipe, leak):
            os.close(fd)


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
from grpo_trainer.rewards.batch import RewardBatch
from grpo_trainer.rewards.loading import load_scorer
scorer = load_scorer(sys.argv[1])
scorer.score(RewardBatch(["p"], ["c"], [[1]], {}, 1, ["stop"]))
"""


@pytest.mark.parametrize(
    "wait",
    [
        "time.sleep(3600)",
        pytest.param(
            "sum(itertools.repeat(0))",
            marks=pytest.mark.skipif(
                sys.platform != "linux", reason="only Linux can end a process that runs no thread"
            ),
        ),
    ],
)
def test_the_worker_dies_with_the_trainer(tmp_path: Path, wait: str) -> None:
    source = f"""
        import itertools, time
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
        [sys.executable, "-P", "-m", "grpo_trainer.rewards.worker", *map(str, (*fds, parent))],
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
