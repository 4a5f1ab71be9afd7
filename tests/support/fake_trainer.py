"""A trainer without a model: speaks the whole protocol, obeys commands, misbehaves on request.

`python fake_trainer.py --steps 20 --interval 0.05` plays a run whose reward climbs;
`--replay FILE` plays a recorded stream instead. It is the child in the tests of the dashboard.
"""

import argparse
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

from fake_events import step_events
from fake_misbehaviour import MISBEHAVIOURS, misbehave
from grpo_protocol.codec import encode_event
from grpo_protocol.commands import (
    Answer,
    BadCommand,
    Command,
    Pause,
    Resume,
    SaveCheckpoint,
    Set,
    Stop,
    command_name,
    parse_command,
)
from grpo_protocol.config import ConfigValues
from grpo_protocol.framing import LineSplitter, Oversized
from grpo_protocol.messages import (
    PROTOCOL_VERSION,
    Ack,
    Applied,
    Checkpoint,
    CheckpointKind,
    Complete,
    DatabasePath,
    EpochEnd,
    EpochStart,
    Event,
    Failed,
    Hello,
    Init,
    Log,
    Paused,
    PhaseChange,
    Resumed,
    Status,
)


def parse_args(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--interval", type=float, default=0.05, help="seconds of one step")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--save-interval", type=int, default=0)
    parser.add_argument("--output-dir", default="outputs/fake")
    parser.add_argument("--resume", nargs="?", const="latest")
    parser.add_argument("--start-step", type=int, default=0)
    parser.add_argument("--misbehave", action="append", choices=MISBEHAVIOURS, default=[])
    parser.add_argument("--flood", type=int, default=0, help="log lines before the first step")
    parser.add_argument("--exit-code", type=int, default=1, help="with --exit-at")
    parser.add_argument("--exit-at", type=int, help="end badly after this step; 0: at once")
    parser.add_argument("--kill-at", type=int, help="die by SIGKILL after this step")
    parser.add_argument("--refuse", metavar="MESSAGE", help="refuse the input: exit code 2")
    parser.add_argument("--no-acks", action="store_true", help="answer as mlx-node's trainer does")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play a recorded stream")
    parser.add_argument("--done-file", type=Path, help="written when the run is complete")
    args, _ = parser.parse_known_args(argv)
    return args


class Finish(Exception):
    """The run ends before its last step."""


class FakeTrainer:
    """One run of the fake; its loop is in `run`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.step = args.start_step
        self.paused = False
        self.stopped_by = 0
        self.commands: queue.SimpleQueue[tuple[int, Command | BadCommand]] = queue.SimpleQueue()
        self.out: int | None = 1

    def run(self) -> int:
        args = self.args
        if "ignore-term" in args.misbehave:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if "stop-on-term" in args.misbehave:
            signal.signal(signal.SIGTERM, self.stop_by_signal)
        if args.refuse:
            self.emit(self.hello())
            self.emit(Failed(error=args.refuse, exit_code=2))
            return 2
        if args.exit_at == 0:
            print("RuntimeError: gone before the first step", file=sys.stderr, flush=True)
            return int(args.exit_code)
        if "deaf" not in args.misbehave:
            threading.Thread(target=self.listen, daemon=True).start()
        if args.replay:
            return self.replay()
        self.begin()
        if misbehave(self.args.misbehave, self.write):
            self.out = None
        status = "completed"
        try:
            self.train()
        except Finish:
            status = "stopped"
        return self.end(status) or (128 + self.stopped_by if self.stopped_by else 0)

    def stop_by_signal(self, number: int, frame: object) -> None:
        """The run ends after the running step; the exit code tells the signal."""
        self.stopped_by = number
        self.commands.put((0, Stop()))

    def hello(self) -> Hello:
        return Hello(PROTOCOL_VERSION, "0.0-fake", os.getpid(), ["ack"])

    def begin(self) -> None:
        args = self.args
        if not args.no_acks:
            self.emit(self.hello())
        self.emit(Status("loading", "Loading fake-model…"))
        self.emit(DatabasePath(f"{args.output_dir}/outputs.db", "run-1", "fake"))
        config = ConfigValues(
            training_type="grpo",
            group_size=args.group_size,
            batch_size=args.prompts,
            temperature=1.0,
            output_dir=args.output_dir,
        )
        self.emit(Init("fake-model", config, args.steps))
        for number in range(args.flood):
            self.emit(Log("info", f"flood line {number}"))

    def train(self) -> None:
        args = self.args
        per_epoch = max(1, args.steps // args.epochs)
        for epoch in range(1, args.epochs + 1):
            last = args.steps if epoch == args.epochs else epoch * per_epoch
            if self.step >= last:
                continue
            self.emit(EpochStart(epoch, args.epochs, per_epoch))
            while self.step < last:
                self.obey()
                self.do_step(epoch, (self.step % per_epoch) + 1)
            self.emit(EpochEnd(epoch, 0.01, 0.5, 1.0))

    def do_step(self, epoch: int, step_in_epoch: int) -> None:
        args, number = self.args, self.step + 1
        self.emit(PhaseChange(number, "generating", 0, args.prompts * args.group_size))
        self.wait(args.interval)
        self.step = number
        for event in step_events(args, number, epoch, step_in_epoch):
            self.emit(event)
        if args.save_interval and number % args.save_interval == 0:
            self.save("periodic")
        if args.kill_at == number:
            os.kill(os.getpid(), signal.SIGKILL)
        if args.exit_at == number:
            print("RuntimeError: broken on request", file=sys.stderr, flush=True)
            sys.stderr.flush()
            os._exit(args.exit_code)

    def end(self, status: str) -> int:
        if status == "stopped" and not self.args.no_acks:
            self.save("stop")
        stopped = status == "stopped"
        self.emit(Complete(self.step, 1.0, "stopped" if stopped else "completed"))
        if self.args.done_file:
            self.args.done_file.write_text(status)
        return 0

    def save(self, kind: CheckpointKind) -> str:
        path = f"{self.args.output_dir}/checkpoint-{self.step}"
        self.emit(PhaseChange(self.step, "saving"))
        self.emit(Checkpoint(path, self.step, kind))
        return path

    def wait(self, seconds: float) -> None:
        """Takes the time of a step; commands act between steps only."""
        time.sleep(seconds)

    def obey(self) -> None:
        """Does what was asked since the last step, and stands still while paused."""
        while True:
            try:
                line, command = self.commands.get(block=self.paused, timeout=0.05)
            except queue.Empty:
                if not self.paused:
                    return
                continue
            self.do(line, command)

    def do(self, line: int, command: Command | BadCommand) -> None:
        path = None
        match command:
            case Pause() if not self.paused:
                self.paused = True
                self.emit(Paused(self.step))
            case Resume() if self.paused:
                self.paused = False
                self.emit(Resumed(self.step))
            case SaveCheckpoint() if not self.args.no_acks:
                path = self.save("manual")
            case Stop():
                if "ignore-stop" in self.args.misbehave:
                    return
                self.applied(line, command, None)
                raise Finish
            case Set(key=key, value=value):
                self.emit(Log("info", f"setting {key} is {value} now"))
            case _:
                pass
        self.applied(line, command, path)

    def applied(self, line: int, command: Command | BadCommand, path: str | None) -> None:
        if not self.args.no_acks and not isinstance(command, BadCommand):
            self.emit(Applied(line, command_name(command), True, step=self.step, path=path))

    def listen(self) -> None:
        """Reads commands by `os.read`: a thread in `sys.stdin` aborts the interpreter's end."""
        splitter, number = LineSplitter(), 0
        while chunk := os.read(0, 65536):
            for line in splitter.feed(chunk):
                number += 1
                self.hear(number, "" if isinstance(line, Oversized) else line.decode())

    def hear(self, number: int, line: str) -> None:
        command = parse_command(line)
        if isinstance(command, Answer):
            self.emit(Log("info", f"answer {command.id}: {', '.join(command.values)}"))
        if not self.args.no_acks:
            bad = isinstance(command, BadCommand)
            message = command.message if isinstance(command, BadCommand) else None
            self.emit(Ack(number, command_name(command), not bad, message, self.step + 1))
        self.commands.put((number, command))

    def replay(self) -> int:
        for line in self.args.replay.read_bytes().splitlines(keepends=True):
            self.write(line)
            if line.startswith((b'{"type":"step"', b'{"type": "step"')):
                time.sleep(self.args.interval)
                try:
                    self.obey()
                except Finish:
                    return self.end("stopped")
        return 0

    def emit(self, event: Event) -> None:
        self.write(encode_event(event))

    def write(self, data: bytes) -> None:
        """To stdout; once nobody reads any more the run goes on in silence."""
        rest = memoryview(data)
        while rest and self.out is not None:
            try:
                rest = rest[os.write(self.out, rest) :]
            except BrokenPipeError:
                self.out = None


def main(argv: list[str] | None = None) -> int:
    return FakeTrainer(parse_args(sys.argv[1:] if argv is None else argv)).run()


if __name__ == "__main__":
    sys.exit(main())
