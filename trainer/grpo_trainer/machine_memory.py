"""How much memory this process can have, in bytes."""

import os
import sys
from pathlib import Path

import mlx.core as mx

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MEMINFO = Path("/proc/meminfo")


def machine_memory() -> int:
    """That of the device mlx computes on.

    On a GPU what it has, or on Apple silicon what Metal recommends to use of it. On a CPU what is
    free for programs now and what this one holds already, within the limit of a container.
    """
    if (on_gpu := gpu_memory()) is not None:
        return on_gpu
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(total, _available() or total, _container_limit() or total)


def gpu_memory() -> int | None:
    """What a GPU has, or None when mlx computes on a CPU: the same however much of it is in use."""
    if is_on_cpu():
        return None
    info = mx.device_info(mx.default_device())
    # The first two are Metal's, the third is CUDA's.
    names = ("max_recommended_working_set_size", "memory_size", "total_memory")
    return next((int(info[name]) for name in names if info.get(name)), None)


def is_on_cpu() -> bool:
    """Whether mlx computes on a CPU."""
    return bool(mx.default_device() == mx.Device(mx.cpu))


def _available() -> int | None:
    if sys.platform != "linux":
        return None
    for line in _lines(_MEMINFO):
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024 + int(mx.get_active_memory())
    return None


def _container_limit() -> int | None:
    """None without a container, or without a limit."""
    words = _lines(_CGROUP_LIMIT)
    return int(words[0]) if words and words[0].strip().isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
