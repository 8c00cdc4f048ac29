"""Call the right judge for a learner's function, and turn whatever it does into a verdict."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from .defaults import usual_defaults
from .timelimit import Limit, Unreturned
from .values import shown, text_of
from .verdict import Tick, Verdict

Answer = Callable[..., Any]
Judge = Callable[[Answer], Verdict]


class Refused(Exception):
    """Raised by a judge at the first fault it can prove; carries the verdict to show."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.says)
        self.verdict = verdict


class Unsolved(Exception):
    """Raised when the answer is still the stub."""


class Check:
    """The check of one lab: ``check(my_function)`` judges it by its name and shows the verdict.

    An unsolved stub gets "not done yet" and never raises, so an unsolved lab runs to its end.
    """

    def __init__(self, puzzles: Mapping[str, Judge]) -> None:
        self.puzzles = dict(puzzles)
        self._seen: dict[str, tuple[Answer, Verdict]] = {}

    def __call__(self, answer: Answer) -> None:
        """Judge ``answer`` and show the verdict, as a picture with text in a notebook and as text elsewhere."""
        verdict = self.judge(answer)
        try:
            from IPython import get_ipython
        except ImportError:
            get_ipython = None
        if get_ipython is None or get_ipython() is None:
            print(verdict)
            return
        from IPython.display import display
        display(verdict)

    def passed(self, answer: Answer) -> bool:
        """Whether ``answer`` passes; judged again unless it is the function that was judged last (for graders)."""
        name = getattr(answer, "__name__", "")
        judged, verdict = self._seen.get(name, (None, None))
        return verdict.passed if judged is answer and verdict else self.judge(answer).passed

    def judge(self, answer: Answer) -> Verdict:
        """Return the verdict on ``answer``; raises ValueError when no puzzle has its name."""
        name = self._puzzle_of(answer)
        with usual_defaults() as changed:
            verdict = self._verdict(name, answer)
        if changed and not verdict.passed and not verdict.pending:
            verdict.says += (f"\n(This notebook has set the {changed}; in a check they are PyTorch's own, the CPU and "
                             "float32. Say device=... and dtype=... where you need others.)")
        self._seen[name] = (answer, verdict)
        return verdict

    def _verdict(self, name: str, answer: Answer) -> Verdict:
        try:
            return self.puzzles[name](answer)
        except Refused as refused:
            return refused.verdict
        except Unsolved:
            return Verdict(name, says=f"Write {name} in the cell above, then run this cell again.", pending=True)
        except Exception as error:   # an answer of a kind that no judge expects: a learner sees no traceback
            if _of_the_device(error):
                return Verdict(name, [Tick("correct", False, "an operation on the GPU failed")],
                               says=f"{text_of(error)}\nIt was launched, and failed when it ran. "
                                    "Is there an index that does not exist?")
            return Verdict(name, [Tick("correct", False, "the check itself stopped at this answer")],
                           says=f"{text_of(error)}\nIs what the function returns and leaves of the kind asked for?")

    def _puzzle_of(self, answer: Answer) -> str:
        name = getattr(answer, "__name__", None)
        if callable(answer) and name in self.puzzles:
            return name
        known = ", ".join(self.puzzles)
        if callable(answer):
            raise ValueError(f"check() knows a puzzle by the name of its function, and yours is called {name!r}; "
                             f"define one of: {known}")
        raise ValueError(f"check({shown(answer)}): give one of this lab's functions, not its result: {known}")


def _of_the_device(error: BaseException) -> bool:
    """Whether an operation that was queued on the simulated device raised it, found when its numbers were needed."""
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_name != "raise_errors":
        at = at.tb_next
    return at is not None


def call(puzzle: str, answer: Answer, *arguments: Any, on: str, empty: bool = False) -> Any:
    """Run a learner's function on one case; its own error becomes a verdict that names the case and the line.

    Raises Refused for an exception of the learner's, for the wrong number of parameters and, unless ``empty`` says
    that there may be none, for a missing return value; and for one that does not return, after LIMIT_S of real time
    (``timelimit`` says where it cannot be stopped). Raises Unsolved for the bare NotImplementedError of a stub.
    """
    _check_signature(puzzle, answer, len(arguments))
    limit = Limit()
    try:
        with limit:
            result = answer(*arguments)
    except (Unreturned, Exception, SystemExit) as error:
        if limit.says:
            raise Refused(_unreturned(puzzle, answer, limit, on, error)) from None
        if isinstance(error, Unreturned):   # of a check around this one
            raise
        if type(error) is NotImplementedError and not error.args:   # not what a library raises: that has a message
            raise Unsolved(puzzle) from None
        raise Refused(_failed(puzzle, answer, error, on)) from error
    if limit.says:   # it has caught what stopped it
        raise Refused(_unreturned(puzzle, answer, limit, on))
    if result is None and not empty:
        raise Refused(Verdict(puzzle, [Tick("correct", False, f"{puzzle} returned None on {on}")],
                              says="Does every way through the function end in a return?"))
    return result


def _check_signature(puzzle: str, answer: Answer, count: int) -> None:
    try:
        signature = inspect.signature(answer)
    except (TypeError, ValueError):   # builtins may have none
        return
    try:
        signature.bind(*range(count))
    except TypeError:
        why = f"it is called with {count} argument{'' if count == 1 else 's'}, but takes {signature}"
        raise Refused(Verdict(puzzle, [Tick("correct", False, why)],
                              says="Keep the parameters of the stub as they were.")) from None


def _unreturned(puzzle: str, answer: Answer, limit: Limit, on: str, error: BaseException | None = None) -> Verdict:
    says = f"your function {limit.says}: is there a loop that never ends?"
    return Verdict(puzzle, [Tick("correct", False, f"it did not return on {on}")],
                   says=says + (_line_in(answer, error) if error else ""))


def _failed(puzzle: str, answer: Answer, error: BaseException, on: str) -> Verdict:
    return Verdict(puzzle, [Tick("correct", False, f"it raised {type(error).__name__} on {on}")],
                   says=text_of(error) + _line_in(answer, error))


def _line_in(answer: Answer, error: BaseException) -> str:
    """The innermost line that the learner wrote, on a line of its own; empty where that is not known."""
    called = inspect.unwrap(answer)
    if not hasattr(called, "__code__"):         # a class, or an object that can be called
        called = getattr(called, "__init__" if isinstance(called, type) else "__call__", None)
    code = getattr(called, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    return (f"\nLine {own[-1].lineno} of its cell" + (f": {own[-1].line}" if own[-1].line else "")) if own else ""
