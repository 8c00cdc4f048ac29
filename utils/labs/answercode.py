"""Read what stands in a learner's code: names and numbers, wherever it calls functions of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any


def code_of(answer: Callable[..., Any]) -> list[CodeType]:
    """The code of a function or class, of functions inside it and of the learner's own ones that it names."""
    found: list[CodeType] = []
    _collect(inspect.unwrap(answer), found)
    return found


def _collect(answer: Any, found: list[CodeType]) -> None:
    if isinstance(answer, type):
        for method in vars(answer).values():
            _collect(method, found)
    if not isinstance(answer, FunctionType) or answer.__code__ in found:
        return
    waiting = [answer.__code__]
    while waiting:
        code = waiting.pop()
        found.append(code)
        waiting += [item for item in code.co_consts if isinstance(item, CodeType)]
        for name in code.co_names:
            other = answer.__globals__.get(name)
            if isinstance(other, FunctionType) and other.__module__ == answer.__module__:
                _collect(other, found)


def names_in(answer: Callable[..., Any]) -> set[str]:
    """Every global and attribute that the learner's code names."""
    return {name for code in code_of(answer) for name in code.co_names}


PINNED = ("host_weights are pinned already. Pinning memory takes the host a long time, which the simulated device does "
          "not count")


def pin_advice(answer: Callable[..., Any]) -> list[str]:
    """What to say to an answer with nothing wrong that pins memory."""
    return [PINNED] if "pin_memory" in names_in(answer) else []


def numbers_in(answer: Callable[..., Any]) -> set[float]:
    """Every number that stands in the learner's code."""
    return {item for code in code_of(answer) for item in code.co_consts if type(item) in (int, float)}
