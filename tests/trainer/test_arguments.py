"""From the words of a command line to a config, or one line."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from grpo_protocol import ConfigError
from grpo_protocol.config import config_keys
from grpo_trainer.arguments import Arguments, parse_arguments, wants_events

COMMANDS: dict[str, dict[str, Any]] = {"train": {}, "demo": {"max_steps": 150, "batch_size": 12}}


def parse(*words: str) -> Arguments:
    return parse_arguments(words, COMMANDS)


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*words)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_options_and_settings_may_stand_in_any_order() -> None:
    pieces = [["max_steps=8"], ["--model", "m"], ["seed=3"], ["--data=d.jsonl"], ["--reward", "r"]]
    for order in itertools.permutations(pieces):
        found = parse("train", *itertools.chain(*order))
        config = found.config
        assert found.command == "train"
        assert (config.model, config.data, config.reward) == ("m", "d.jsonl", ["r"])
        assert (config.max_steps, config.seed) == (8, 3)
    assert parse("--debug", "--model", "m", "train", "seed=3").debug


def test_settings_win_over_the_file_and_the_file_over_the_command(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("max_steps = 9\nbatch_size = 3\n[output_store]\nenabled = false\n")
    config = parse("demo", str(file), "batch_size=5").config
    assert (config.max_steps, config.batch_size) == (9, 5)
    assert not config.output_store.enabled
    assert parse("demo").config.max_steps == 150
    assert parse("demo", "output_store.enabled=false").config.output_store.enabled is False


def test_options_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('model = "a"\nreward = ["x.py"]\n')
    config = parse(
        "train", str(file), "--model", "b", "--reward", "y.py", "--reward", "z.py"
    ).config
    assert config.model == "b"
    assert config.reward == ["y.py", "z.py"]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--resume"], "latest"),
        (["--resume", "max_steps=3"], "latest"),
        (["--resume", "--debug"], "latest"),
        (["--resume", "max-steps=3"], "latest"),
        (["--resume", "output_store.enabled=false"], "latest"),
        (["--resume", "run/checkpoint-3"], "run/checkpoint-3"),
        (["--resume", "outputs/lr=1e-5-x/checkpoint-5"], "outputs/lr=1e-5-x/checkpoint-5"),
        (["--resume=latest"], "latest"),
        (["resume_from_checkpoint=latest"], "latest"),
        ([], None),
    ],
)
def test_resume_may_stand_bare(words: list[str], value: str | None) -> None:
    assert parse("train", *words, "seed=1").config.resume_from_checkpoint == value


@pytest.mark.parametrize(("word", "mode"), [("--events", True), ("tui_mode=true", True)])
def test_events_are_asked_for_by_option_or_key(word: str, mode: bool) -> None:
    assert parse("train", word).config.tui_mode is mode
    assert parse("train").config.tui_mode is None


def test_the_wish_for_events_is_known_before_the_words_are_understood() -> None:
    assert wants_events(["train", "--bogus", "--events"])
    assert wants_events(["train", "--bogus", "tui_mode=true"])
    assert wants_events(["train", "tui_mode=false"]) is False
    assert wants_events(["train", "--bogus"]) is None


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["train", "--bogus"], ["--bogus", "--help"]),
        (["train", "--mod", "x"], ["--mod"]),
        (["tarin"], ["tarin", "train", "demo"]),
        ([], ["no command", "train, demo"]),
        (["train", "--model"], ["--model"]),
        (["train", "max_stesp=3"], ["max_stesp='3'", "unknown option", "did you mean max_steps?"]),
        (["train", "xyzzy=3"], ["xyzzy='3'", "unknown option", "--help"]),
        (["train", "group_size=1"], ["group_size=1", ">= 2"]),
        (["train", "group_size=0"], ["group_size=0", ">= 2"]),
        (["train", "group_size=-2"], ["group_size=-2", ">= 2"]),
        (["train", "group_size=2.5"], ["group_size='2.5'", "int"]),
        (["train", "learning_rate=fast"], ["learning_rate='fast'", "float"]),
        (["train", "learning_rate=nan"], ["learning_rate=nan"]),
        (["train", "learning_rate=1e400"], ["learning_rate=inf", "finite"]),
        (["train", "loss_type=ppo"], ["loss_type='ppo'", "grpo, bnpo, dr_grpo, dapo"]),
        (["train", "max_completion_length=0"], ["max_completion_length=0", ">= 1"]),
        (
            ["train", "steps_per_generation=3", "gradient_accumulation_steps=2"],
            ["steps_per_generation=3", "gradient_accumulation_steps=2", "multiple"],
        ),
        (["train", "delta=1.1"], ["delta=1.1", "above 1 + the upper clip"]),
        (["train", "loss_type=dap"], ["loss_type='dap'", "cispo, sapo, luspo, vespo, gmpo"]),
        (["train", "stray"], ["'stray'", "key=value"]),
        (["train", "missing.toml"], ["missing.toml", "No such file"]),
        (["train", "a.toml", "b.toml"], ["a.toml", "b.toml", "name one"]),
        (["train", "output_store.enabeld=false"], ["output_store.enabeld", "output_store.enabled"]),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(words: list[str], parts: list[str]) -> None:
    message = refusal(*words)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("group_size = 1", ["group_size=1", ">= 2"]),
        ("group_size = 0", ["group_size=0", ">= 2"]),
        ("group_size = -2", ["group_size=-2", ">= 2"]),
        ("group_size = 2.5", ["group_size=2.5", "int"]),
        ('group_size = "4"', ["group_size='4'", "int"]),
        ('learning_rate = "1e-6"', ["learning_rate='1e-6'", "float"]),
        ("group-size = 4", ["group-size", "group_size"]),
        ("[training]\nlr = 1e-5", ["training", "unknown option"]),
        ("loraRank = 64", ["loraRank", "did you mean lora_rank?"]),
        ("[output_store]\nseed = 1", ["output_store.seed", "unknown option"]),
        ("seed = 1\nseed = 2", ["not valid TOML"]),
        ("seed =", ["not valid TOML"]),
        ("\x00", ["not valid TOML"]),
        ("seed = true", ["seed=True", "int"]),
        ("output_store = 3", ["output_store=3"]),
        ('reward = "r.py"', ["reward='r.py'"]),
    ],
)
def test_M03_E16_E17_a_config_file_is_judged_as_strictly(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    message = refusal("train", str(file))
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("text", "word", "parts"),
    [
        ("output_store = 3", "output_store.enabled=false", ["output_store=3", "[output_store]"]),
        ("seed = 1", "seed.seed=3", ["seed.seed='3'", "unknown option", "did you mean seed?"]),
        ("", "seed.seed=3", ["seed.seed='3'", "unknown option"]),
        ("", "a.b.c=3", ["a.b.c='3'", "unknown option"]),
    ],
)
def test_a_setting_of_a_section_that_is_none_is_refused(
    tmp_path: Path, text: str, word: str, parts: list[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    message = refusal("train", str(file), word)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("text", ["1e-6", "1E-6", ".000001", "0.000001"])
def test_E16_a_small_number_is_the_same_in_every_form(text: str) -> None:
    assert parse("train", f"learning_rate={text}").config.learning_rate == 1e-6


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(b"\xff\xfe")
    assert "not valid TOML" in refusal("train", str(file))


def test_help_describes_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for key in config_keys():
        assert f"    {key.name} (" in text
        assert key.description in text
    assert all(
        option in text for option in ("--model", "--data", "--reward", "--resume", "--events")
    )
