"""Prepares Linux for mlx: a fast matrix product on CPUs, and what its environment has to say.

mlx for Linux CPUs ships a reference BLAS that is 20 to 50 times slower than OpenBLAS. The symbols
of a library that is loaded globally before mlx win, so `load` has to run before mlx is imported.
"""

import ctypes
import os
import platform
import shutil
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CANDIDATES = (
    "libopenblas.so.0",
    "libmkl_rt.so.2",
    "libmkl_rt.so.1",
    "libblis.so.4",
    "libblis.so.3",
)
_EXPECTED_GFLOPS = 80.0  # two cores with OpenBLAS
_SLOW_GFLOPS = 15.0


@dataclass(frozen=True)
class Blas:
    """What `load` found: the library in use, or why there is none."""

    library: str | None
    problem: str | None = None
    """`missing`, `late` (mlx was imported first), or the name of a library that did not load."""


@cache
def load() -> Blas:
    """Loads the fastest BLAS there is, once; does nothing where mlx does not need one.

    `GRPO_BLAS` names a library to use instead. Importing the package calls this, so that whatever
    imports the package before mlx is fast.
    """
    if platform.system() != "Linux":
        return Blas("system")
    if "mlx.core" in sys.modules:
        return Blas(None, "late")
    _free_buffers_early()
    _use_private_kernel_folder()
    _compile_only_with_a_compiler()
    if wanted := os.environ.get("GRPO_BLAS"):
        return Blas(wanted) if _load_global(wanted) else Blas(None, wanted)
    for name in (*_CANDIDATES, *_in_virtual_environment()):
        if _load_global(name):
            return Blas(name)
    return Blas(None, "missing")


def slowness(blas: Blas) -> tuple[float, str] | None:
    """How many times slower than usual a product runs, with the remedy; `None` when it is fast.

    Measures for about 20 ms, and only when no library was loaded and mlx runs on the CPU.
    """
    if blas.library is not None:
        return None
    from grpo_trainer.machine_memory import is_on_cpu

    if not is_on_cpu():
        return None
    gflops = _measure_gflops()
    if gflops > _SLOW_GFLOPS:
        return None
    return _EXPECTED_GFLOPS / gflops, _remedy(blas)


def complaint(slow: tuple[float, str]) -> str:
    """What `slowness` found, in one line."""
    factor, remedy = slow
    return f"matrix products are about {factor:.0f} times slower than usual: {remedy}"


def _remedy(blas: Blas) -> str:
    if blas.problem == "late":
        return "import grpo_trainer before mlx"
    install = "apt install libopenblas0 (without root: pip install mkl)"
    if blas.problem == "missing":
        return install
    return f"GRPO_BLAS={blas.problem} could not be loaded: correct it, or {install}"


def _measure_gflops() -> float:
    import mlx.core as mx

    size = 192
    a = mx.ones((size, size))
    mx.eval(a, a @ a)
    best, start = float("inf"), time.perf_counter()
    while time.perf_counter() - start < 0.02:
        before = time.perf_counter()
        mx.eval(a @ a)
        best = min(best, time.perf_counter() - before)
    return 2 * size**3 / best / 1e9


def _load_global(name: str) -> bool:
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def _in_virtual_environment() -> list[str]:
    """`pip install mkl` puts the library beside Python, where the loader does not look."""
    folder = Path(sys.prefix) / "lib"
    return [str(folder / name) for name in _CANDIDATES if (folder / name).exists()]


def _compile_only_with_a_compiler() -> None:
    """mlx compiles fused CPU kernels with the machine's C++ compiler, which may be absent."""
    if shutil.which("g++") is None:
        os.environ.setdefault("MLX_DISABLE_COMPILE", "1")


def _free_buffers_early() -> None:
    """mlx on CUDA frees what an operation read only when a whole batch of them is done.

    Smaller batches cost no time that shows, and without them gradient checkpointing saves little:
    28 layers of 8 × 1536 tokens peaked at 14.1 GB, and at 3.8 GB with 50 MB a batch.
    """
    os.environ.setdefault("MLX_MAX_MB_PER_BUFFER", "50")


def _use_private_kernel_folder() -> None:
    """mlx keeps compiled kernels under TMPDIR, where another user could plant one.

    Python's own temporary files stay where they were.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-tui"
    folder = cache / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError:
        return
    # Child processes inherit TMPDIR; those of ours find the person's own folder here.
    tempfile.tempdir = os.environ.setdefault("GRPO_TMPDIR", tempfile.gettempdir())
    os.environ["TMPDIR"] = str(folder)
    for kernel in folder.glob("mlx/*/cpu/*.so"):
        if not _is_whole_elf(kernel):
            kernel.unlink(missing_ok=True)


def _is_whole_elf(path: Path) -> bool:
    """Whether a 64-bit ELF file reaches to its section table's end, which is what a crash cuts."""
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or header[:4] != b"\x7fELF":
        return False
    (table_offset,) = struct.unpack_from("<Q", header, 0x28)
    entry_size, entries = struct.unpack_from("<HH", header, 0x3A)
    return path.stat().st_size >= int(table_offset) + int(entry_size) * int(entries)
