"""How a reward function is called, by TRL's convention, and what it may return.

A function gets the keywords that it declares (all of them with `**kwargs`) and returns one number
for each row, None where it abstains. Plain and async functions, methods, partials and objects with
`__call__` are alike. Everything else is a `FunctionFailure` that names the function.
"""

import inspect
import math
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, TypeAlias

from grpo_trainer.rewards.batch import KEYWORDS

Score: TypeAlias = float | None
"""None where a function abstains."""

FLOAT32_MAX = 3.4028234e38
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class FunctionFailure(Exception):
    """A reward function raised, or returned what is no score; `detail` holds the traceback."""

    def __init__(
        self, function: str, message: str, row: int | None = None, detail: str = ""
    ) -> None:
        super().__init__(message)
        self.function = function
        self.message = message
        self.row = row
        self.detail = detail


@dataclass(frozen=True)
class CallSignature:
    """What a reward function asks for."""

    name: str
    text: str
    """As in the source: `(completions, answer, **kwargs)`."""
    positional: list[str]
    """Parameters that can only be given by position."""
    named: list[str]
    required: list[str]
    takes_all: bool

    def missing(self, columns: Sequence[str]) -> list[str]:
        """Required parameters that neither the trainer nor a column can fill."""
        return [name for name in self.required if name not in KEYWORDS and name not in columns]


@dataclass(frozen=True)
class RewardFunction:
    """A callable under its name in metrics, database and messages."""

    function: Callable[..., Any]
    signature: CallSignature

    @property
    def name(self) -> str:
        """The name that scores are filed under."""
        return self.signature.name

    def __call__(self, keywords: Mapping[str, Any]) -> Any:
        """Calls the function with those of `keywords` that it can take."""
        given = dict(keywords)
        positional = []
        for name in self.signature.positional:
            if name not in given:
                break
            positional.append(given.pop(name))
        if not self.signature.takes_all:
            given = {name: given[name] for name in self.signature.named if name in given}
        return self.function(*positional, **given)


def reward_function(function: Callable[..., Any], name: str | None = None) -> RewardFunction:
    """`function` with its signature read once."""
    name = name or _name_of(function)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some compiled functions tell nothing about themselves.
        return RewardFunction(function, CallSignature(name, "(**kwargs)", [], [], [], True))
    parameters = signature.parameters.values()
    fixed = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return RewardFunction(
        function,
        CallSignature(
            name=name,
            text=str(signature),
            positional=[p.name for p in fixed if p.kind is p.POSITIONAL_ONLY],
            named=[p.name for p in fixed if p.kind in _NAMED],
            required=[p.name for p in fixed if p.default is p.empty],
            takes_all=any(p.kind is p.VAR_KEYWORD for p in parameters),
        ),
    )


def call_functions(
    functions: Sequence[RewardFunction],
    keywords: Callable[[], Mapping[str, Any]],
    size: int,
    *,
    before: Callable[[list[str]], None],
    after: Callable[[str], None],
    gather: Callable[[Mapping[str, Awaitable[Any]]], Mapping[str, Any]],
) -> dict[str, list[Score]]:
    """Calls each function once: plain ones in order, then the async ones together.

    `keywords` makes the arguments of one call; `before` and `after` tell what is running.
    """
    returned: dict[str, Any] = {}
    waiting: dict[str, Awaitable[Any]] = {}
    try:
        for function in functions:
            before([function.name])
            with blame(function.name):
                result = function(keywords())
            if inspect.isawaitable(result):
                waiting[function.name] = result
            else:
                returned[function.name] = as_scores(function.name, result, size)
            after(function.name)
    except BaseException:
        for result in waiting.values():
            if inspect.iscoroutine(result):
                result.close()
        raise
    if waiting:
        before(list(waiting))
        for name, result in gather(waiting).items():
            returned[name] = as_scores(name, result, size)
    return {function.name: returned[function.name] for function in functions}


@contextmanager
def blame(function: str) -> Iterator[None]:
    """Turns what user code raises into a `FunctionFailure`; `sys.exit` is no way out either."""
    try:
        yield
    except (Exception, SystemExit) as error:
        raise failure_of(function, error) from error


def failure_of(function: str, error: BaseException) -> FunctionFailure:
    """`error` as the failure of `function`."""
    detail = "".join(traceback.format_exception(error))
    return FunctionFailure(function, describe(error), detail=detail)


def describe(error: BaseException) -> str:
    """Kind and message of an error in one line."""
    return one_line(f"{type(error).__name__}: {error}").removesuffix(":")


def as_scores(function: str, returned: Any, size: int) -> list[Score]:
    """What `function` returned as `size` scores. Raises `FunctionFailure`."""
    values = returned
    if not isinstance(values, list | tuple) and hasattr(values, "tolist"):
        with blame(function):
            values = values.tolist()
    if not isinstance(values, list | tuple):
        raise FunctionFailure(
            function, f"returned {_shown(returned)}, wanted a list of {size} numbers"
        )
    if len(values) != size:
        raise FunctionFailure(
            function, f"returned {len(values)} scores for {size} completions; one each is needed"
        )
    return [_as_score(function, row, value) for row, value in enumerate(values)]


def _as_score(function: str, row: int, value: Any) -> Score:
    if value is None:
        return None
    if not isinstance(value, Real) and getattr(value, "shape", None) == ():
        value = value.item()
    if not isinstance(value, Real):
        raise FunctionFailure(
            function, f"returned {_shown(value)}, wanted a number, or None to abstain", row
        )
    try:
        score = float(value)
    except OverflowError:
        score = math.inf
    if not abs(score) <= FLOAT32_MAX:
        raise FunctionFailure(
            function, f"returned {_shown(value)}, wanted a finite number, or None to abstain", row
        )
    return score


def one_line(text: str, limit: int = 400) -> str:
    """`text` without line ends and not longer than `limit`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _shown(value: Any) -> str:
    kind = type(value).__name__
    return "None" if value is None else f"{one_line(repr(value), limit=60)} ({kind})"


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
