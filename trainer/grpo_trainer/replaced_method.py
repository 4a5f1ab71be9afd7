"""Gives one module another method than its class has, and takes it back."""

from collections.abc import Callable
from typing import Any


def replace_method(module: Any, name: str, function: Callable[..., Any]) -> Callable[[], None]:
    """From now on `function(module, ...)` is that method of `module`; returns what undoes it.

    The module gets a class of its own, because Python looks for methods such as `__call__` in the
    class alone. Names and values of its weights stay as they are.
    """
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {name: function})
    return lambda: setattr(module, "__class__", kind)
