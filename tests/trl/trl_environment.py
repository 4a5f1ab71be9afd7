"""A virtual environment with TRL and PyTorch, apart from the project's own.

`GRPO_TRL_ENV` names its folder, by default one below ~/.cache; it is made once and used again.
`GRPO_TRL_TORCH` replaces the requirement for PyTorch and may hold further options of pip, such as
those that choose the build for CPUs: by default some systems get the far larger one for GPUs.
"""

import fcntl
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TORCH = "torch==2.13.0"
TRL = "trl==1.16.0"
_DEFAULT_FOLDER = Path.home() / ".cache" / "grpo-tui" / "trl-env"
_INSTALL_SECONDS = 3600
_STAMP = "installed.txt"


class TRLUnavailable(Exception):
    """TRL could not be installed or did not run; the text says what to do."""


def trl_python() -> Path:
    """The interpreter of an environment that has TRL, made now if there is none.

    Raises `TRLUnavailable`.
    """
    folder = Path(os.environ.get("GRPO_TRL_ENV") or _DEFAULT_FOLDER).absolute()
    python = folder / "bin" / "python"
    installs = [shlex.split(os.environ.get("GRPO_TRL_TORCH") or TORCH), [TRL]]
    wanted = "\n".join(shlex.join(words) for words in installs)
    stamp = folder / _STAMP
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder.with_name(folder.name + ".lock")):
        if stamp.is_file() and stamp.read_text() == wanted:
            return python
        if not stamp.is_file() and folder.exists() and any(folder.iterdir()):
            raise TRLUnavailable(
                f"GRPO_TRL_ENV={folder}: holds something that was not made here; name a new folder"
            )
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        stamp.touch()  # says whose folder it is, should installing be interrupted
        _run([sys.executable, "-m", "venv", str(folder)])
        for words in installs:
            _run([str(python), "-m", "pip", "install", "--quiet", *words])
        stamp.write_text(wanted)
    return python


def run_in_trl(script: Path, *arguments: Path) -> None:
    """Runs `script` there on one CPU core, without network. Raises `TRLUnavailable`."""
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    _run([str(trl_python()), str(script), *map(str, arguments)], environment)


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Test processes beside one another must not install into the same folder."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(words: list[str], environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=_INSTALL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TRLUnavailable(f"`{shlex.join(words)}`: {error}") from error
    if done.returncode:
        raise TRLUnavailable(
            f"`{shlex.join(words)}` failed with exit status {done.returncode}. Comparing with TRL "
            "needs a package index that has PyTorch and TRL; GRPO_TRL_TORCH changes what is asked "
            f"for as PyTorch.\n{(done.stdout + done.stderr)[-4000:]}"
        )
