"""A fast BLAS before mlx, a private folder for compiled kernels, and the word about a slow one."""

import _ctypes
import json
import os
import stat
from pathlib import Path
from typing import Any, Protocol

import pytest

from grpo_trainer import blas
from grpo_trainer.blas import Blas
from python_process import run_python

LOAD = """
import ctypes, json, os, sys, tempfile
from grpo_trainer import blas
before = tempfile.gettempdir()
found = blas.load()
mapped = open("/proc/self/maps").read() if os.path.exists("/proc/self/maps") else ""
print(json.dumps({
    "library": found.library, "problem": found.problem, "openblas": "openblas" in mapped,
    "kernels": os.environ.get("TMPDIR"), "before": before, "python": tempfile.gettempdir(),
    "buffers": os.environ.get("MLX_MAX_MB_PER_BUFFER"),
    "compile": os.environ.get("MLX_DISABLE_COMPILE"), "mlx": "mlx.core" in sys.modules,
    "global": hasattr(ctypes.CDLL(None), "cblas_sgemm"),
}))
"""

linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux needs it")


class Load(Protocol):
    """Runs code that loads a BLAS in a new process, with a cache folder of its own."""

    def __call__(self, code: str = LOAD, **environ: str) -> Any: ...


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    for name in ("GRPO_BLAS", "TMPDIR", "MLX_DISABLE_COMPILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def run(code: str = LOAD, **environ: str) -> Any:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        result = run_python(code)
        assert result.returncode == 0, result.stderr.decode()
        return json.loads(result.stdout)

    return run


@linux
def test_a_library_is_loaded_before_mlx(load: Load) -> None:
    found = load()
    if found["library"] is None:
        pytest.skip("no OpenBLAS, MKL or BLIS here: apt install libopenblas0")
    assert found["problem"] is None
    assert not found["mlx"]
    assert found["global"], "mlx would not see it"
    if "openblas" in found["library"]:
        assert found["openblas"]


@linux
def test_a_named_library_wins_and_a_wrong_name_is_said(load: Load) -> None:
    assert load(GRPO_BLAS="libc.so.6")["library"] == "libc.so.6"
    wrong = load(GRPO_BLAS="libnosuch.so")
    assert (wrong["library"], wrong["problem"]) == (None, "libnosuch.so")


@linux
def test_after_mlx_it_is_too_late_and_said_so(load: Load) -> None:
    found = load("import mlx.core\n" + LOAD)
    assert (found["library"], found["problem"]) == (None, "late")


@linux
def test_kernels_are_compiled_into_a_folder_of_ones_own(tmp_path: Path, load: Load) -> None:
    found = load()
    folder = Path(found["kernels"])
    assert folder == tmp_path / "grpo-tui" / "kernels"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert found["python"] == found["before"] != str(folder)


@linux
def test_a_cache_that_cannot_be_made_costs_nothing(tmp_path: Path, load: Load) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert load(XDG_CACHE_HOME=str(blocked))["kernels"] is None


@linux
def test_a_kernel_that_a_crash_cut_is_removed_and_a_whole_one_kept(
    tmp_path: Path, load: Load
) -> None:
    folder = tmp_path / "grpo-tui" / "kernels" / "mlx" / "0.1" / "cpu"
    folder.mkdir(parents=True)
    whole = Path(_ctypes.__file__).read_bytes()
    (folder / "whole.so").write_bytes(whole)
    (folder / "cut.so").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.so").write_bytes(b"")
    (folder / "text.so").write_bytes(b"x" * 1000)
    load()
    assert [path.name for path in folder.iterdir()] == ["whole.so"]


@linux
def test_without_a_compiler_mlx_does_not_try_to_compile(load: Load) -> None:
    assert load(PATH="/nonexistent")["compile"] == "1"


@linux
def test_memory_on_a_gpu_is_freed_early_unless_someone_chose_otherwise(load: Load) -> None:
    assert load()["buffers"] == "50"
    assert load(MLX_MAX_MB_PER_BUFFER="1000")["buffers"] == "1000"


def test_a_fast_machine_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_measure_gflops", lambda: 50.0)
    assert blas.slowness(Blas(None, "missing")) is None
    monkeypatch.setattr(blas, "_measure_gflops", lambda: 4.0)
    assert blas.slowness(Blas("libopenblas.so.0")) is None


@linux
@pytest.mark.parametrize(
    ("found", "remedy"),
    [
        (Blas(None, "missing"), "apt install libopenblas0 (without root: pip install mkl)"),
        (Blas(None, "late"), "import grpo_trainer before mlx"),
        (Blas(None, "libnosuch.so"), "GRPO_BLAS=libnosuch.so could not be loaded"),
    ],
)
def test_a_slow_machine_is_told_how_slow_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, found: Blas, remedy: str
) -> None:
    monkeypatch.setattr(blas, "_measure_gflops", lambda: 4.0)
    slow = blas.slowness(found)
    if slow is None:
        pytest.skip("mlx does not run on the CPU here")
    assert slow[0] == 20.0
    assert remedy in slow[1]


def test_the_measurement_measures() -> None:
    assert blas._measure_gflops() > 0


@linux
def test_importing_the_library_s_face_loads_it_first(tmp_path: Path, load: Load) -> None:
    use = "import grpo_trainer; grpo_trainer.GRPOTrainer; found = blas.Blas(None)"
    code = LOAD.replace("found = blas.load()", use)
    found = load(code)
    assert found["mlx"]
    assert found["kernels"] == str(tmp_path / "grpo-tui" / "kernels")
