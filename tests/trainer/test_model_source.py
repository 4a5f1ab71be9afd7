"""Finding and loading a model, and the one line that says why it cannot be."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from grpo_protocol import ConfigError
from grpo_trainer import model_source
from grpo_trainer.errors import ModelError
from grpo_trainer.model_source import check_model_name, load_model
from grpo_trainer.tensor_file import read_tensors, write_tensors
from tiny_model import EOS_ID, make_model, tiny_model


def load(name: str | Path) -> Any:
    return load_model(str(name), lambda message: None)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_a_folder_is_loaded_with_its_tokenizer(kind: Any) -> None:
    loaded = load(tiny_model(kind))
    assert loaded.config["model_type"] == kind
    assert loaded.tokenizer.encode("a") != []
    assert set(loaded.tokenizer.eos_token_ids) == {EOS_ID}


def test_M15_stop_ids_are_the_union_of_what_the_files_say(tmp_path: Path) -> None:
    """The tokenizer says 258; a generation config that says otherwise adds to it."""
    several = load(make_model(tmp_path / "several", eos=[1, 106]))
    assert set(several.tokenizer.eos_token_ids) == {1, 106, EOS_ID}
    one = load(make_model(tmp_path / "one", eos=106))
    assert set(one.tokenizer.eos_token_ids) == {106, EOS_ID}
    bare = make_model(tmp_path / "bare")
    (bare / "generation_config.json").unlink()
    assert set(load(bare).tokenizer.eos_token_ids) == {EOS_ID}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "model=None: name a model folder or a hub id with --model"),
        ("no-such-folder", "no such folder; check the path"),
        ("/no/such/folder", "no such folder; check the path"),
        ("./no-such/folder", "no such folder; check the path"),
        ("../model", "no such folder; check the path"),
        ("owner/", "no such folder; check the path"),
    ],
)
def test_a_name_that_cannot_be_a_model_is_refused(name: str | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_model_name(name)
    assert message in str(caught.value)
    assert f"model={name!r}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_id_may_be_a_model() -> None:
    check_model_name("owner/some-model")


def test_a_folder_without_config_or_weights_and_a_file_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(ConfigError, match=r"has no config\.json; name an mlx-lm model"):
        check_model_name(str(folder))
    (folder / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"has no model\*\.safetensors weights"):
        check_model_name(str(folder))
    with pytest.raises(ConfigError, match=r"is a file; name the folder of an mlx-lm model"):
        check_model_name(str(folder / "config.json"))


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])


def unknown_architecture(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "no_such_model"}))


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def text_for_a_number(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": "258"}))


def broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def other_shapes(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_size": 32}))


def remote_code(folder: Path) -> None:
    path = folder / "config.json"
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_file": "evil.py"}))


@pytest.mark.parametrize(
    "damage",
    [
        cut_weights,
        unknown_architecture,
        broken_config,
        text_for_a_number,
        broken_tokenizer,
        other_shapes,
    ],
)
def test_a_damaged_model_is_refused_with_one_line(tmp_path: Path, damage: Any) -> None:
    folder = make_model(tmp_path / "model")
    damage(folder)
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert f"model={str(folder)!r}: cannot be loaded: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_code_in_a_model_folder_is_not_run(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    remote_code(folder)
    with pytest.raises(ModelError):
        load(folder)
    assert not (folder / "ran").exists()


class Response:
    """As much of an HTTP response as the hub's errors look at."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.request = None
        self.status_code = 403


def refused(kind: Any, message: str) -> Exception:
    error: Exception = kind(message, response=Response())
    return error


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (refused(GatedRepoError, "gated"), "accept its terms on the hub, then set HF_TOKEN"),
        (refused(RepositoryNotFoundError, "gone"), "set HF_TOKEN if private"),
        (LocalEntryNotFoundError("offline\nmore"), "without network, name a local folder"),
        (ConnectionError("unreachable"), "without network, name a local folder"),
    ],
)
def test_a_failed_download_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, error: Exception, remedy: str
) -> None:
    def fail(*args: Any, **options: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelError) as caught:
        load("owner/model")
    assert remedy in str(caught.value)
    assert "model='owner/model'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_download_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    def download(name: str, *, allow_patterns: Any, tqdm_class: Any) -> str:
        with tqdm_class(total=200, desc="model.safetensors") as bar:
            for _ in range(4):
                bar.update(50)
        return str(tiny_model())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    said: list[str] = []
    loaded = load_model("owner/model", said.append)
    assert loaded.name == "owner/model"
    assert said[0] == "downloading owner/model"
    assert said[-1] == "downloading owner/model: 100 %"
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def refuse(config: dict[str, Any]) -> None:
    raise ModelError(f"no {config['model_type']} please")


def test_a_model_may_be_refused_by_its_config_before_its_weights_are_read(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"none")
    with pytest.raises(ModelError, match="no qwen3 please"):
        load_model(str(folder), lambda message: None, refuse)


def test_a_model_may_be_refused_before_its_weights_are_downloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[str]] = []

    def download(name: str, *, allow_patterns: list[str], tqdm_class: Any) -> str:
        asked.append(allow_patterns)
        return str(tiny_model())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ModelError, match="no qwen3 please"):
        load_model("owner/model", lambda message: None, refuse)
    assert asked == [["config.json", "hf_quant_config.json"]]
    load("owner/model")
    assert "model*.safetensors" in asked[-1]


@pytest.mark.parametrize("text", ["[]", "null", '"model"', "\udcff"])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    folder = make_model(tmp_path / "model")
    (folder / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert str(caught.value).startswith(f"model={str(folder)!r}: cannot be loaded: ")
    assert "\n" not in str(caught.value)


def test_what_the_config_says_is_kept_as_it_is(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", eos=[1, 2], limit={"__float__": "Infinity"})
    assert load(folder).config_file == json.loads((folder / "config.json").read_text())


def test_weights_larger_than_the_memory_are_not_read() -> None:
    with (
        patch.object(model_source, "machine_memory", lambda: 100_000),
        patch.object(model_source, "load_mlx_model", side_effect=AssertionError("was read")),
        pytest.raises(ModelError, match=r"take 0\.\d GB and there are 0\.0 GB of memory; use a"),
    ):
        load(tiny_model())


def test_a_weight_that_is_missing_is_named(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    tensors = read_tensors(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    write_tensors(folder / "model.safetensors", tensors)
    with pytest.raises(ModelError, match=r"Missing 1 parameters: .*model\.norm\.weight"):
        load(folder)
