"""Finds and loads a model: a folder, or a Hugging Face hub id that is downloaded first."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mlx_lm.utils import load_model as load_mlx_model
from mlx_lm.utils import load_tokenizer

from grpo_protocol import ConfigError
from grpo_trainer.end_tokens import end_token_ids
from grpo_trainer.errors import ModelError, first_line
from grpo_trainer.machine_memory import machine_memory

_TOKENIZERS = ("tokenizer*.json", "tokenizer.model", "*.tiktoken", "vocab.json")
_CONFIG_FILES = ["config.json", "hf_quant_config.json"]
_PATTERNS = ["*.json", "model*.safetensors", "tokenizer.model", "*.tiktoken", "*.txt", "*.jinja"]


@dataclass(frozen=True)
class LoadedModel:
    """What was loaded, and the folder it came from."""

    model: Any
    tokenizer: Any
    """Its `eos_token_ids` are all tokens that end a completion."""
    config: dict[str, Any]
    """As mlx-lm understands it."""
    config_file: dict[str, Any]
    """config.json as it stands in the folder."""
    folder: Path
    name: str
    """The folder or hub id as it was asked for."""


def check_model_name(model: str | None) -> None:
    """Refuses what cannot be a model before anything is loaded. Raises `ConfigError`."""
    if not model:
        raise ConfigError("model=None: name a model folder or a hub id with --model")
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"model={model!r}: the folder has no config.json; name an mlx-lm model"
            )
        if not any(folder.glob("model*.safetensors")):
            raise ConfigError(f"model={model!r}: the folder has no model*.safetensors weights")
        if not any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
            raise ConfigError(f"model={model!r}: the folder has no tokenizer.json; copy it there")
    elif folder.exists():
        raise ConfigError(f"model={model!r}: is a file; name the folder of an mlx-lm model")
    elif not _is_hub_id(model):
        raise ConfigError(f"model={model!r}: no such folder; check the path")


def _is_hub_id(model: str) -> bool:
    owner, separator, name = model.partition("/")
    return bool(separator and owner and name) and "/" not in name and owner not in (".", "..", "~")


def load_model(
    name: str,
    on_status: Callable[[str], None],
    accept: Callable[[dict[str, Any]], None] = lambda config: None,
) -> LoadedModel:
    """Loads weights and tokenizer. Raises `ModelError` with one line that says what to do.

    `accept` gets the model's config.json before any weights are downloaded or read; what it raises
    ends the loading.
    """
    from huggingface_hub.errors import StrictDataclassError

    check_model_name(name)
    folder = Path(name).expanduser()
    is_local = folder.is_dir()
    if not is_local:
        on_status(f"downloading {name}")
        folder = _download(name, _CONFIG_FILES, lambda message: None)
    config_file = _read_config(folder, name)
    accept(config_file)
    if not is_local:
        folder = _download(name, _PATTERNS, on_status)
    _expect_weights_to_fit(folder, name)
    try:
        model, config = load_mlx_model(folder)
        tokenizer = load_tokenizer(folder)
        tokenizer.eos_token_ids = end_token_ids(folder, tokenizer)
    except (
        ValueError,
        OSError,
        KeyError,
        TypeError,
        RuntimeError,
        StrictDataclassError,  # transformers checks the types of config.json's values
    ) as error:
        raise ModelError(f"model={name!r}: cannot be loaded: {first_line(error)}") from error
    return LoadedModel(model, tokenizer, config, config_file, folder, name)


def _expect_weights_to_fit(folder: Path, name: str) -> None:
    """Reading them would end the process, or bring the machine to a halt, without a word."""
    size = sum(path.stat().st_size for path in folder.glob("model*.safetensors"))
    memory = machine_memory()
    if size > memory:
        raise ModelError(
            f"model={name!r}: its weights take {size / 1e9:.1f} GB and there are "
            f"{memory / 1e9:.1f} GB of memory; use a quantized or a smaller model"
        )


def _read_config(folder: Path, name: str) -> dict[str, Any]:
    """config.json, with the quantization that some exports describe in a file of its own."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
        if not isinstance(config, dict):
            raise ValueError("config.json is no JSON object")
        if (path := folder / "hf_quant_config.json").is_file():
            config.setdefault("quantization_config", json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ModelError(f"model={name!r}: cannot be loaded: {first_line(error)}") from error
    return cast("dict[str, Any]", config)


def _download(name: str, patterns: list[str], on_status: Callable[[str], None]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    try:
        return Path(
            snapshot_download(
                name, allow_patterns=patterns, tqdm_class=_status_bar(name, on_status)
            )
        )
    except GatedRepoError as error:
        raise ModelError(
            f"model={name!r}: access is gated; accept its terms on the hub, then set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"model={name!r}: neither a folder nor a hub id; check it, or set HF_TOKEN if private"
        ) from error
    except (HfHubHTTPError, OSError, RuntimeError, ValueError) as error:
        raise ModelError(
            f"model={name!r}: cannot be downloaded ({first_line(error)}); "
            "without network, name a local folder"
        ) from error


def _status_bar(name: str, on_status: Callable[[str], None]) -> Any:
    """A progress bar class for the hub client that reports whole percents."""
    from tqdm import tqdm

    class StatusBar(tqdm):  # type: ignore[type-arg, misc, unused-ignore]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._percent = -1
            super().__init__(*args, **{**kwargs, "disable": False, "file": _Nowhere()})

        def display(self, *args: Any, **kwargs: Any) -> None:
            percent = int(100 * self.n / self.total) if self.total else 0
            if percent > self._percent:
                self._percent = percent
                on_status(f"downloading {name}: {percent} %")

    return StatusBar


class _Nowhere:
    """A stream for progress bars that must not reach the terminal."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...
