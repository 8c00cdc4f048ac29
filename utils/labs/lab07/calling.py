"""Call a learner's part of the loop, which has to run at once and to leave the current stream as it was."""

from __future__ import annotations

import inspect
from typing import Any

from ..check import Answer, Refused, call
from ..verdict import Tick, Verdict

WRITTEN_AS = {"coroutine": "`async def`", "generator": "a `yield`"}


def run_part(puzzle: str, answer: Answer, *arguments: Any, on: str, empty: bool = False) -> Any:
    """What a learner's function returns. ``empty``: it does something, and may return nothing.

    Raises what ``call`` raises, and Refused where nothing has run yet or another stream is current afterwards.
    """
    import torch

    here = torch.cuda.current_stream()
    try:
        result = call(puzzle, answer, *arguments, on=on, empty=empty)
        changed = torch.cuda.current_stream() != here
    finally:
        torch.cuda.set_stream(here)
    if empty and (inspect.iscoroutine(result) or inspect.isgenerator(result)):
        kind = type(result).__name__
        result.close()
        raise _refused(puzzle, f"it returned a {kind}", f"With {WRITTEN_AS[kind]} in it, a call runs nothing yet of "
                       f"{puzzle}: write an ordinary function.")
    if changed:
        raise _refused(puzzle, "another stream is current afterwards",
                       "Leave the current stream as it was: `with torch.cuda.stream(...):` does.")
    return result


def _refused(puzzle: str, why: str, says: str) -> Refused:
    return Refused(Verdict(puzzle, [Tick("correct", False, why)], says=says))
