"""Numbers, durations and sizes as short text for people."""

import math

_SUFFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float | None, digits: int = 3) -> str:
    """`value` with about `digits` significant digits: `0.612`, `1.84k`, `1e-5`; `-` for None."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e15 or size < 1e-4:
        return _exponent(value, digits)
    if size < 1:
        return f"{value:.{digits}f}" if size >= 10 ** (1 - digits) else _exponent(value, digits)
    if size < 1000:
        whole = int(math.log10(size)) + 1
        return f"{value:.{max(0, digits - whole)}f}"
    for scale, suffix in _SUFFIXES:
        if size >= scale:
            return number(value / scale, digits) + suffix
    raise AssertionError(value)


def integer(value: int) -> str:
    """`3296` as `3,296`."""
    return f"{value:,}"


def percent(value: float | None) -> str:
    """A share of one as `31%`."""
    if value is None or not math.isfinite(value):
        return number(None if value is None else value)
    return f"{value * 100:.0f}%" if value == 0 or abs(value) >= 0.1 else f"{value * 100:.1f}%"


def duration(seconds: float | None) -> str:
    """`0:09`, `1:42:07`, `2d 03h`; `-` for None."""
    if seconds is None or not math.isfinite(seconds):
        return "-"
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        return f"{days}d {hours:02d}h"
    if hours:
        return f"{hours}:{minutes:02d}:{secs:02d}"
    return f"{minutes}:{secs:02d}"


def ago(seconds: float) -> str:
    """How long something is past: `9s`, `3m`, `2h 05m`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def seconds(milliseconds: float | None) -> str:
    """A part of a step: `11.9s`, `0.20s`, `850ms`; `-` for None."""
    if milliseconds is None or not math.isfinite(milliseconds):
        return "-"
    if milliseconds < 1000:
        return f"{milliseconds:.0f}ms"
    value = milliseconds / 1000
    return f"{value:.1f}s" if value < 600 else duration(value)


def memory(megabytes: float | None) -> str:
    """Megabytes as `512M` or `11.2G`; `-` for None."""
    if megabytes is None or not math.isfinite(megabytes):
        return "-"
    if megabytes < 1000:
        return f"{megabytes:.0f}M"
    return f"{megabytes / 1000:.1f}G"


def _exponent(value: float, digits: int) -> str:
    mantissa, exponent = f"{value:.{max(0, digits - 2)}e}".split("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"
