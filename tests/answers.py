"""What the tests of the labs' checks share: an answer judged under the name of a puzzle."""

from __future__ import annotations

import functools
import inspect

import torch


def HERE():   # stands for torch.cuda.current_stream, which a session replaces
    return torch.cuda.current_stream()


def judge_as(check, puzzle, answer):
    """The verdict of ``check`` on an answer, whatever its own name is: a function or a class."""
    if inspect.isclass(answer):
        return check.judge(type(puzzle, (answer,), {}))

    @functools.wraps(answer, assigned=("__doc__",), updated=())
    def under_its_name(*arguments):
        return answer(*arguments)
    under_its_name.__name__ = puzzle
    return check.judge(under_its_name)


def trial(check):
    """Of a lab: judged(answer, puzzle), refused(answer, phrase, puzzle) and passes(answer, puzzle)."""
    def judged(answer, puzzle):
        return judge_as(check, puzzle, answer)

    def refused(answer, phrase, puzzle):
        verdict = judged(answer, puzzle)
        assert not verdict.passed and not verdict.pending
        assert phrase in " ".join(str(verdict).split()), str(verdict)
        assert max(map(len, str(verdict).split("\n"))) <= 84, str(verdict)

    def passes(answer, puzzle):
        verdict = judged(answer, puzzle)
        assert verdict.passed, str(verdict)
        return verdict

    return judged, refused, passes
