"""Values that are computed once, and fail once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class remembered(Generic[Value]):
    """A property whose value, or the error instead of it, is that of its first use.

    Several checks look at one optimizer step. When it fails, each of them says so, and none takes
    it again from weights that the failure may have left in between.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self._name = f"_remembered_{compute.__name__}"
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> Value:
        kept = vars(instance)
        if self._name not in kept:
            try:
                kept[self._name] = self._compute(instance)
            except Exception as error:
                kept[self._name] = _Failure(error)
        found: Value | _Failure = kept[self._name]
        if isinstance(found, _Failure):
            raise found.error
        return found


@dataclass(frozen=True)
class _Failure:
    error: Exception
