"""The process in which reward functions from files run, in its main thread.

Started by `process` as `python -P -m grpo_trainer.rewards.worker REQUESTS REPLIES PARENT`:
two pipe descriptors and the trainer's process id. Stdout and stderr belong to user code.
"""

import ctypes
import faulthandler
import io
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from queue import SimpleQueue

from grpo_protocol.config_input import ConfigError
from grpo_trainer.rewards.async_runner import AsyncRunner
from grpo_trainer.rewards.calling import FunctionFailure, RewardFunction, call_functions, failure_of
from grpo_trainer.rewards.files import ImportFailure, load_functions
from grpo_trainer.rewards.frames import (
    Channel,
    Failed,
    Loaded,
    LoadFiles,
    PeerGone,
    Refused,
    Reply,
    Running,
    ScoreBatch,
    Scored,
    decode_request,
    encode,
)
from grpo_trainer.rewards.validation import expect_unique

_PR_SET_PDEATHSIG = 1
_EXIT_SECONDS = 2.0
"""How long user code may take to end after the trainer has closed the pipe or is gone."""


def main() -> None:
    """Serves requests until the trainer closes its pipe."""
    request_fd, reply_fd, parent = map(int, sys.argv[1:])
    del sys.argv[1:]
    _die_with(parent)
    for fd in (request_fd, reply_fd):
        os.set_inheritable(fd, False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    faulthandler.enable()
    channel = Channel(request_fd, reply_fd)
    inbox: SimpleQueue[bytes | None] = SimpleQueue()
    threading.Thread(target=_read_requests, args=(channel, inbox), daemon=True).start()
    with suppress(PeerGone):
        _serve(channel, inbox)


def _serve(channel: Channel, inbox: "SimpleQueue[bytes | None]") -> None:
    functions: list[RewardFunction] = []
    runner = AsyncRunner()
    while (payload := inbox.get()) is not None:
        match decode_request(payload):
            case LoadFiles() as request:
                functions, reply = _load(request)
            case ScoreBatch(batch=batch):
                reply = _score(functions, payload, batch.size, runner, channel)
        _flush()
        channel.send(encode(reply))
    runner.close()


def _load(request: LoadFiles) -> tuple[list[RewardFunction], Reply]:
    try:
        functions = load_functions(request.specs)
        expect_unique([function.name for function in functions])
    except ImportFailure as failure:
        return [], Refused(str(failure), failure.detail)
    except ConfigError as error:
        return [], Refused(str(error))
    return functions, Loaded([function.signature for function in functions])


def _score(
    functions: list[RewardFunction],
    payload: bytes,
    size: int,
    runner: AsyncRunner,
    channel: Channel,
) -> Reply:
    def keywords() -> dict[str, object]:
        # Decoded anew for each function: what one changes, the next does not see.
        request = decode_request(payload)
        assert isinstance(request, ScoreBatch)
        return request.batch.keywords()

    running: list[str] = []

    def before(names: list[str]) -> None:
        running[:] = names
        channel.send(encode(Running(names)))

    try:
        scores = call_functions(
            functions, keywords, size, before=before, after=lambda _: None, gather=runner.gather
        )
    except FunctionFailure as failure:
        return _failed(failure)
    except BaseException as error:
        return _failed(failure_of(", ".join(running), error))
    return Scored(scores)


def _failed(failure: FunctionFailure) -> Failed:
    return Failed(failure.function, failure.message, failure.row, failure.detail)


def _read_requests(channel: Channel, inbox: "SimpleQueue[bytes | None]") -> None:
    """In a thread: the end of the pipe is noticed while user code runs, too."""
    with suppress(PeerGone):
        while True:
            inbox.put(channel.receive())
    inbox.put(None)
    time.sleep(_EXIT_SECONDS)
    # The worker leads a process group of its own, which holds what user code has started.
    os.killpg(0, signal.SIGKILL)


def _die_with(parent: int) -> None:
    """Linux ends this process with the trainer's, even when user code never lets a thread run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the trainer is gone")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # User code may have replaced or closed it.
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()


if __name__ == "__main__":
    main()
