"""From the words of a command line to a config, or one line."""

import itertools
import re
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
        (["train", "group_size=2.5"], ["group_size='2.5'", "whole number"]),
        (["train", "learning_rate=fast"], ["learning_rate='fast'", "a number"]),
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
        ("group_size = 2.5", ["group_size=2.5", "whole number"]),
        ('group_size = "4"', ["group_size='4'", "whole number"]),
        ('learning_rate = "1e-6"', ["learning_rate='1e-6'", "a number"]),
        ("group-size = 4", ["group-size", "group_size"]),
        ("[training]\nlr = 1e-5", ["training", "unknown option"]),
        ("loraRank = 64", ["loraRank", "did you mean lora_rank?"]),
        ("[output_store]\nseed = 1", ["output_store.seed", "unknown option"]),
        ("seed = 1\nseed = 2", ["not valid TOML"]),
        ("seed =", ["not valid TOML"]),
        ("\x00", ["not valid TOML"]),
        ("seed = true", ["seed=True", "whole number"]),
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
    words = " ".join(text.split())
    for key in config_keys():
        for shown in key.keys or (key,):
            assert f"\n    {shown.name}=" in text
            assert shown.description in words
    assert all(
        option in text for option in ("--model", "--data", "--reward", "--resume", "--events")
    )


@pytest.mark.parametrize(
    "entry",
    [
        "loss_type=grpo The loss: how the ratio weighs a token, and how tokens become one number. "
        "One of grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo, vespo, gmpo.",
        "importance_sampling_level=none New to old",
        "sequence for luspo and gmpo, token for the others. One of token, sequence. clip_epsilon=",
        "learning_rate=none (live) Peak",
        "shuffle=true A new order",
        "output_store.enabled=true Record",
        "output_store.local_path=none Database file",
        "temperature=0.8 (live) Divides the logits, in sampling and in the loss alike. top_k=0",
    ],
)
def test_help_shows_defaults_choices_and_what_is_live(
    entry: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse("train", "--help")
    assert entry in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("columns", [60, 100, 200])
def test_help_fits_the_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        parse("--help")
    lines = capsys.readouterr().out.splitlines()
    assert columns * 0.75 < max(map(len, lines)) <= columns


def test_defaults_in_the_help_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    settings = re.findall(r"^    ([a-z][\w.]*=\S+)", capsys.readouterr().out, re.MULTILINE)
    assert len(settings) == sum(len(key.keys) or 1 for key in config_keys())
    plain = parse("train").config
    for setting in settings:
        assert parse("train", setting).config == plain, setting
