"""Reward functions in files: what is loaded, what is refused and when."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest

import reward_workers
from grpo_protocol.config_input import ConfigError
from grpo_trainer.dataset import as_examples, load_dataset
from grpo_trainer.rewards.loading import load_scorer
from reward_batches import text_batch
from reward_workers import EXACT, Load, Output, failure_of, write

load, output = reward_workers.load, reward_workers.output


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
