"""Lab 05, puzzles 1 to 3: the worked answer passes without advice, and a stub is not done yet."""

import pytest
from answers import judge_as

from utils import simgpu
from utils.labs.lab05 import check
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/05_offload_and_swap")
PUZZLES = ("store_each", "three_lanes", "swap")


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_solution_passes(puzzle):
    verdict = check.judge(getattr(SOLUTION, puzzle))
    assert verdict.passed and not verdict.advice and verdict.tried, str(verdict)


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_stub_is_not_done_yet(puzzle):
    def stub(*_):
        raise NotImplementedError()
    assert judge_as(check, puzzle, stub).pending
    assert simgpu.active() is None
