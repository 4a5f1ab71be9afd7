"""The event channel: whole events in order, and never a wait for the reader."""

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from grpo_protocol.codec import decode_event
from grpo_protocol.framing import LineSplitter
from grpo_protocol.messages import Ack, Dropped, Generation, Log, Step
from grpo_trainer.output.wire import Outbox, Wire
from python_process import SECONDS
from wire_events import decode_all, generation, read_events, step


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    with contextlib.suppress(OSError):
        os.close(reader)


def test_R22_dead_reader_is_noticed_without_a_write(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    gone = threading.Event()
    wire = Wire(writer, on_reader_gone=gone.set)
    os.close(reader)
    assert gone.wait(SECONDS)
    assert wire.reader_gone
    wire.close()


def test_P07_stopped_reader_never_stops_training_nor_grows_memory(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    wire = Wire(writer, max_bytes=1_000_000)
    for number in range(1, 201):
        wire.emit(step(number))
        wire.emit(generation(50_000, number))
        assert wire._outbox.num_bytes <= 1_000_000
    threading.Thread(target=wire.close, args=(SECONDS,)).start()
    events = read_events(reader)
    assert [event.step for event in events if isinstance(event, Step)] == list(range(1, 201))
    arrived = [event.index for event in events if isinstance(event, Generation)]
    assert arrived[-1] == 200, "the newest completions are kept"
    reports = [event for event in events if isinstance(event, Dropped)]
    assert sum(event.generations for event in reports) == 200 - len(arrived) > 0
    assert len(reports) == 1


def test_closing_does_not_wait_for_a_stopped_reader(pipe: tuple[int, int]) -> None:
    wire = Wire(pipe[1])
    wire.emit(generation(1_000_000))
    closer = threading.Thread(target=wire.close, args=(0.1,))
    closer.start()
    closer.join(SECONDS)
    assert not closer.is_alive()


def test_steps_go_only_when_nothing_else_is_left() -> None:
    outbox = Outbox(max_bytes=2_000)
    outbox.put(Ack(line=1, command="PAUSE", ok=True))
    outbox.put(Log("info", "x" * 500))
    for number in range(100):
        outbox.put(step(number))
    assert outbox.num_bytes <= 2_000
    events = decode_all(b"".join(iter(outbox.take, None)))
    assert isinstance(events[0], Ack)
    numbers = [event.step for event in events if isinstance(event, Step)]
    assert numbers == list(range(100 - len(numbers), 100))
    assert [e for e in events if isinstance(e, Dropped)] == [
        Dropped(logs=1, steps=100 - len(numbers))
    ]


def test_what_was_taken_leaves_nothing_behind() -> None:
    outbox = Outbox()
    for number in range(100):
        outbox.put(step(number))
        outbox.put(Log("info", "text"))
        outbox.put(Ack(line=1, command="PAUSE", ok=True))
        assert len(decode_all(b"".join(iter(outbox.take, None)))) == 3
    assert not outbox
    assert not outbox._lines
    assert not outbox._first_to_go
    assert not outbox._steps


def test_W23_an_event_above_the_record_cap_is_left_out_and_counted() -> None:
    outbox = Outbox()
    outbox.put(generation(9_000_000))
    outbox.put(step(1))
    events = decode_all(b"".join(iter(outbox.take, None)))
    assert events == [Dropped(generations=1), step(1)]


def test_an_event_that_cannot_be_encoded_is_a_log_line() -> None:
    outbox = Outbox()
    outbox.put(Step(step=1, loss=0.5, total_tokens=1, metrics={"x": object()}))  # type: ignore[dict-item]
    (event,) = decode_all(b"".join(iter(outbox.take, None)))
    assert isinstance(event, Log)
    assert event.level == "error"


@pytest.mark.parametrize("blocking", [True, False])
def test_R01_a_5_mb_event_arrives_whole(pipe: tuple[int, int], blocking: bool) -> None:
    reader, writer = pipe
    os.set_blocking(writer, blocking)
    wire = Wire(writer)
    wire.emit(generation(5_000_000))
    wire.emit(step(2))
    threading.Thread(target=wire.close, args=(SECONDS,)).start()
    assert read_events(reader) == [generation(5_000_000), step(2)]


def test_W19_R05_a_loss_that_is_not_finite_arrives_as_unknown(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    wire = Wire(writer)
    wire.emit(step(1, float("nan")))
    wire.emit(step(2, float("-inf")))
    wire.close()
    assert read_events(reader) == [step(1, None), step(2, None)]


def test_R07_lone_surrogates_and_nul_arrive(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    wire = Wire(writer)
    wire.emit(Log("info", "a\ud83d\x00\x1b[2J"))
    wire.close()
    assert read_events(reader) == [Log("info", "a\ufffd\x00\x1b[2J")]


def test_events_of_many_threads_stay_whole_lines(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    wire = Wire(writer)

    def talk(name: int) -> None:
        for number in range(200):
            wire.emit(step(name * 1000 + number))

    threads = [threading.Thread(target=talk, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wire.close()
    numbers = [event.step for event in read_events(reader) if isinstance(event, Step)]
    assert sorted(numbers) == [name * 1000 + number for name in range(4) for number in range(200)]
    for name in range(4):
        mine = [number for number in numbers if number // 1000 == name]
        assert mine == sorted(mine)


def test_only_the_main_thread_takes_over() -> None:
    errors: list[BaseException] = []

    def take_over() -> None:
        try:
            Wire.take_over()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=take_over)
    thread.start()
    thread.join()
    assert len(errors) == 1


def test_a_reader_that_splits_lines_sees_every_event(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    wire = Wire(writer)
    wire.emit(Log("info", "line\u2028separator\nand newline"))
    wire.close()
    splitter = LineSplitter()
    (line,) = list(splitter.feed(os.read(reader, 1 << 16)))
    assert isinstance(line, bytes)
    assert decode_event(line) == Log("info", "line\u2028separator\nand newline")
