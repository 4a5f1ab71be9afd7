"""A trainer without a model: speaks the whole protocol, obeys commands, misbehaves on request.

`python fake_trainer.py --steps 20 --interval 0.05` plays a run whose reward climbs;
`--replay FILE` plays a recorded stream instead. It is the child in the tests of the dashboard.
"""

import argparse
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

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
from grpo_protocol.messages import (
    PROTOCOL_VERSION,
    Ack,
    Applied,
    Checkpoint,
    Complete,
    DatabasePath,
    EpochEnd,
    EpochStart,
    Event,
    Failed,
    Generation,
    Hello,
    Init,
    Log,
    Paused,
    PhaseChange,
    Resumed,
    Status,
    Step,
)

MISBEHAVIOURS = (
    "long-line",
    "over-long-line",
    "invalid-utf8",
    "split-utf8",
    "unknown-json",
    "stray-print",
    "null-loss",
    "progress-bar",
    "close-stderr",
    "close-stdout",
    "hold-pipes",
    "ignore-stop",
    "ignore-term",
    "deaf",
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
        self.commands: queue.SimpleQueue[tuple[int, Command | BadCommand]] = queue.SimpleQueue()
        self.out: int | None = 1

    def run(self) -> int:
        args = self.args
        if "ignore-term" in args.misbehave:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
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
        self.misbehave()
        status = "completed"
        try:
            self.train()
        except Finish:
            status = "stopped"
        return self.end(status)

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
        batch = list(self.completions(number))
        rewards = [item.reward or 0.0 for item in batch]
        mean = sum(rewards) / len(rewards)
        self.emit(
            Step(
                step=number,
                loss=None if "null-loss" in args.misbehave else 0.02 / number,
                total_tokens=sum(item.tokens for item in batch),
                mean_reward=mean,
                std_reward=0.3,
                std_advantage=0.9,
                generation_time_ms=max(1.0, args.interval * 800),
                reward_time_ms=2.0,
                training_time_ms=max(1.0, args.interval * 200),
                peak_memory_mb=812.0,
                active_memory_mb=640.0,
                epoch=None if args.no_acks else epoch,
                step_in_epoch=None if args.no_acks else step_in_epoch,
                gradient_norm=0.4,
                learning_rate=1e-5,
                metrics={
                    "rewards/correct/mean": mean * 0.8,
                    "rewards/format/mean": mean * 0.2,
                    "completions/mean_length": 24.0,
                    "completions/clipped_ratio": 0.05,
                    "frac_reward_zero_std": 0.25,
                    "entropy": 0.7,
                    "kl": 0.001,
                },
            )
        )
        for item in batch:
            self.emit(item)
        if args.save_interval and number % args.save_interval == 0:
            self.save("periodic")
        if args.kill_at == number:
            os.kill(os.getpid(), signal.SIGKILL)
        if args.exit_at == number:
            print("RuntimeError: broken on request", file=sys.stderr, flush=True)
            sys.stderr.flush()
            os._exit(args.exit_code)

    def completions(self, step: int) -> Iterator[Generation]:
        args, chance = self.args, random.Random(step)
        for index in range(args.prompts * args.group_size):
            prompt_index, row = divmod(index, args.group_size)
            left, right = 10 + (step * 7 + prompt_index) % 80, 11 + (step * 3) % 80
            right_answer = chance.random() < 0.2 + 0.7 * min(1.0, step / 40)
            answer = left + right if right_answer else left + right + 1
            reward = 1.0 if right_answer else 0.2
            yield Generation(
                index=index,
                prompt=f"Compute {left} + {right}.",
                completion=f"<think>{left} + {right}</think>\n<answer>{answer}</answer>",
                reward=reward,
                tokens=20 + chance.randrange(12),
                reward_details={"correct": reward - 0.2, "format": 0.2},
                step=None if args.no_acks else step,
                prompt_index=None if args.no_acks else prompt_index,
                group_index=None if args.no_acks else row,
                advantage=0.9 if right_answer else -0.9,
                expected_answer=str(left + right),
                finish_reason="stop",
            )

    def end(self, status: str) -> int:
        if status == "stopped" and not self.args.no_acks:
            self.save("stop")
        stopped = status == "stopped"
        self.emit(Complete(self.step, 1.0, "stopped" if stopped else "completed"))
        if self.args.done_file:
            self.args.done_file.write_text(status)
        return 0

    def save(self, kind: str) -> str:
        path = f"{self.args.output_dir}/checkpoint-{self.step}"
        self.emit(PhaseChange(self.step, "saving"))
        self.emit(Checkpoint(path, self.step, "manual" if kind == "manual" else "periodic"))
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
        for number, raw in enumerate(sys.stdin.buffer, start=1):
            command = parse_command(raw.decode("utf-8", "replace"))
            if isinstance(command, Answer):
                self.emit(Log("info", f"answer {command.id}: {', '.join(command.values)}"))
            if not self.args.no_acks:
                bad = isinstance(command, BadCommand)
                message = command.message if isinstance(command, BadCommand) else None
                self.emit(Ack(number, command_name(command), not bad, message, self.step + 1))
            self.commands.put((number, command))

    def misbehave(self) -> None:
        asked = self.args.misbehave
        if "long-line" in asked:
            self.emit(Generation(0, "p", "x" * 5_000_000, 1.0, 5, step=0))
        if "over-long-line" in asked:
            self.write(b"y" * 9_000_000 + b"\n")
        if "invalid-utf8" in asked:
            self.write(b"\xff\xfe plain\n")
            self.write(b'{"type":"log","level":"info","message":"bad \x80 byte"}\n')
        if "split-utf8" in asked:
            line = encode_event(Log("info", "joined ✓ again"))
            cut = line.index("✓".encode()) + 1
            self.write(line[:cut])
            time.sleep(0.1)
            self.write(line[cut:])
        if "unknown-json" in asked:
            self.write(b'{"type":"future_event","x":1}\n[]\n{}\n{"type":"step","loss":NaN}\n\n')
        if "stray-print" in asked:
            self.write(b"hello from a reward function\n")
        if "progress-bar" in asked:
            os.write(2, b"\r 10%|\x1b[32m#\x1b[0m  |\r100%|\x1b[32m###\x1b[0m|\n")
        if "close-stderr" in asked:
            os.close(2)
        if "hold-pipes" in asked:
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(20)"])
        if "close-stdout" in asked:
            os.close(1)
            self.out = None

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
