"""What the tests of lab 08's checks share."""

from answers import judge_as

from utils.labs.lab08 import check
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/08_cuda_graphs")


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
