"""One filter language: the live samples and the record give the same answer to the same words."""

from pathlib import Path

import pytest

from grpo_tui.record.database import DatabaseReader
from grpo_tui.record.database_filter import narrowed
from grpo_tui.record.database_rows import GenerationQuery
from grpo_tui.record.recorded_sample import recorded_sample
from grpo_tui.sample_query import Bound, SampleQuery, parse_query
from grpo_tui.state.sample_filter import narrow
from sample_database import Shape, build_run


@pytest.mark.parametrize("word", ["reward<..", "reward<1e5", "step:1..", "tok>", "adv=--1"])
def test_what_is_no_comparison_is_a_word(word: str) -> None:
    assert parse_query(word) == SampleQuery(words=(word,))


def test_terms() -> None:
    query = parse_query("reward<.5 step:4..9 fin: fin:length fin:stop two words")
    assert query == SampleQuery(
        (Bound("reward", "<", 0.5), Bound("step", ">=", 4), Bound("step", "<=", 9)),
        ("length", "stop"),
        ("two", "words"),
    )
    assert not parse_query(" fin: ")


@pytest.mark.parametrize(
    "text",
    [
        "fin:length",
        "fin:LENGTH fin:sto",
        "fin:stop fin:nothing reward>0.3",
        "step:2..3 COMPLETION",
        "step=2 adv<-1.",
        "reward<.. ",
        "reward<1e5",
        "1 2 3 4 5 completion 2.0.3 2 3 plain",
        "tok>=12 what",
    ],
)
async def test_live_and_recorded_answers_are_the_same(text: str, tmp_path: Path) -> None:
    async with await DatabaseReader.open(build_run(tmp_path, Shape(4, 1, 4))) as reader:

        async def found(query: GenerationQuery) -> list[int]:
            return [k async for chunk in reader.generation_ids("run-1", query) for k in chunk]

        samples = {}
        for key in await found(GenerationQuery()):
            detail = await reader.generation(key)
            assert detail is not None
            samples[key] = recorded_sample(detail)
        held = narrow(list(samples.values()), text)
        live = {key for key, sample in samples.items() if sample in held}
        assert set(await found(narrowed(GenerationQuery(), text))) == live
