"""Completions and log lines held for reading: bounded, numbered for life, filtered."""

from grpo_tui.state.log_book import LEVELS, LogBook
from grpo_tui.state.samples import GroupKey, SampleBook
from run_feed import generation


def book_of(*rewards: float | None, step: int = 1) -> SampleBook:
    book = SampleBook()
    for index, reward in enumerate(rewards):
        book.add(generation(index, reward), step, 2)
    return book


def test_best_and_worst_are_over_the_whole_batch_and_the_first_wins_ties() -> None:
    book = book_of(0.5, 1.0, 0.0, 1.0, 0.0, None)
    assert [sample.index for sample in book.shown("best_worst")] == [1, 2]


def test_one_that_is_both_best_and_worst_is_shown_once() -> None:
    assert [sample.index for sample in book_of(0.5, 0.5).shown("best_worst")] == [0]
    assert [sample.index for sample in book_of(None, None).shown("best_worst")] == [0]


def test_random_shows_two_of_each_step_and_the_same_ones_again() -> None:
    book = book_of(*[0.1] * 8)
    shown = book.shown("random")
    assert len(shown) == 2
    assert shown == book.shown("random")


def test_all_shows_the_newest_step_first_in_the_order_of_the_batch() -> None:
    book = book_of(0.1, 0.2)
    book.add(generation(1), 2, 2)
    book.add(generation(0), 2, 2)
    assert [(s.step, s.index) for s in book.shown("all")] == [(2, 0), (2, 1), (1, 0), (1, 1)]


def test_groups_are_found_by_step_and_prompt() -> None:
    book = book_of(0.1, 0.2, 0.3, 0.4)
    assert [sample.index for sample in book.group(GroupKey(1, 1))] == [2, 3]


def test_numbers_hold_while_old_ones_leave() -> None:
    book = SampleBook(max_samples=3)
    for index in range(5):
        book.add(generation(index), 1, 8)
    assert [sample.number for sample in book] == [2, 3, 4]
    assert book.received == 5
    assert book.get(1) is None
    found = book.get(3)
    assert found is not None
    assert found.index == 3


def test_w23_very_long_completions_do_not_pile_up() -> None:
    book = SampleBook(max_chars=1000)
    for index in range(50):
        book.add(generation(index), 1, 8)
    assert sum(sample.size for sample in book) <= 1000
    assert len(book) > 10


def test_log_lines_keep_their_numbers_while_old_ones_leave() -> None:
    logs = LogBook(max_lines=3)
    for number in range(5):
        logs.add(0.0, "info", "trainer", f"line {number}")
    assert (logs.first_number, logs.next_number) == (2, 5)
    assert [line.text for line in logs.since(4)] == ["line 4"]
    assert [line.text for line in logs.since(0)] == ["line 2", "line 3", "line 4"]


def test_log_filter_by_level() -> None:
    logs = LogBook()
    for level in LEVELS:
        logs.add(0.0, level, "stderr", level)
    assert [line.text for line in logs.since(0, "warn")] == ["warn", "error"]
    assert {line.letter for line in logs} == {"E"}


def test_message_of_many_lines_becomes_lines() -> None:
    logs = LogBook()
    logs.add(0.0, "info", "stdout", "one\n\x1b[1mtwo\x1b[0m\r\nthree")
    assert [line.text for line in logs] == ["one", "two", "three"]
    logs.add(0.0, "info", "stdout", "x\n" * 100_000)
    assert len(logs) < 600
