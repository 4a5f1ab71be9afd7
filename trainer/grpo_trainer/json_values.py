"""Which Python values keep their type and value in JSON."""

import math
from types import NoneType
from typing import NoReturn


class JsonProblem(ValueError):
    """A value that JSON would change or refuse; the text says what it is, as in `a datetime`."""


def expect_json(value: object) -> None:
    """Raises `JsonProblem` unless `value` comes back from JSON as it was."""
    # Subclasses, such as enums, come back as their base.
    exact = type(value) in (str, bool, int, float, list, dict, NoneType)
    match value:
        case _ if not exact:
            raise JsonProblem(f"a {type(value).__name__}")
        case str() if not value.isascii():
            _expect_unicode(value)
        case float() if not math.isfinite(value):
            raise JsonProblem(f"{value}")
        case list():
            for item in value:
                expect_json(item)
        case dict():
            for name, item in value.items():
                if type(name) is not str:
                    raise JsonProblem(f"a dict with the key {name!r}")
                expect_json(item)


def refuse_constant(word: str) -> NoReturn:
    """For `json.loads(parse_constant=…)`, which else takes NaN and Infinity."""
    raise ValueError(f"{word} is no JSON value; use null")


def _expect_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise JsonProblem("half a surrogate pair") from error
