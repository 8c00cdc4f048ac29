"""The questions in lesson 00: stub, right answers, wrong answers with the right words."""

from itertools import pairwise

import pytest

from utils.labs.lab00 import (
    COPIES_TOTAL_US,
    COPY_MS,
    LAYERS,
    NO_KERNEL_US,
    UNCOVERED_US,
    check,
    small_schedule,
    small_trace,
)


def answered(puzzle, value):
    def answer():
        if value is NotImplementedError:
            raise NotImplementedError()
        return value
    answer.__name__ = puzzle
    return check.judge(answer)


@pytest.mark.parametrize("puzzle", list(check.puzzles))
def test_stub_is_not_done_yet(puzzle):
    assert answered(puzzle, NotImplementedError).pending


@pytest.mark.parametrize(("puzzle", "value"), [
    ("limiting_engine", ("h2d", 3)), ("limiting_engine", ["H2D", 3.0]), ("break_even_rows", 3000),
    ("break_even_rows", 3050), ("break_even_rows", 150e12 * 1 / (2 * 25e9)), ("uncovered_us", 70),
])
def test_right_answers_pass(puzzle, value):
    assert answered(puzzle, value).passed


@pytest.mark.parametrize(("puzzle", "value", "says"), [
    ("limiting_engine", ("h2d", 5), "lanes are not added up"),
    ("limiting_engine", ("compute", 2), "it waits for weights"),
    ("limiting_engine", ("compute", 3), "it waits for weights"),
    ("limiting_engine", ("h2d", 2), "How far apart do two copies start"),
    ("limiting_engine", ("pcie", 3), 'are "h2d" and "compute"'),
    ("limiting_engine", "h2d", "Return two things"),
    ("limiting_engine", None, "returned None"),
    ("break_even_rows", 1500, "Half of it"),
    ("break_even_rows", 6000, "Twice as much"),
    ("break_even_rows", 12000, "Four times"),
    ("break_even_rows", 2794, "2^30 is a GiB"),
    ("break_even_rows", 3, "A factor of 1000"),
    ("break_even_rows", 3e6, "A factor of 1000"),
    ("break_even_rows", 777, "Set equal"),
    ("break_even_rows", "3000", "one number"),
    ("break_even_rows", True, "one number"),
    ("uncovered_us", 90, "all copy time"),
    ("uncovered_us", 20, "covered"),
    ("uncovered_us", 75, "the time without a kernel"),
    ("uncovered_us", 60, "Is the second copy counted"),
    ("uncovered_us", 40, "Is the third copy counted"),
    ("uncovered_us", 95, "only while a copy is running"),
    ("uncovered_us", 55, "one by one"),
    ("uncovered_us", float("nan"), "one by one"),
    ("break_even_rows", float("inf"), "one number"),
    ("uncovered_us", "70", "one by one"),
])
def test_wrong_answers_are_refused_in_words(puzzle, value, says):
    verdict = answered(puzzle, value)
    assert not verdict.passed
    assert says in " ".join(str(verdict).split())


def test_the_expected_numbers_are_those_of_the_pictures():
    trace = small_trace()
    assert trace.uncovered_us("h2d", "kernel") == UNCOVERED_US
    assert trace.busy_us("h2d") == COPIES_TOTAL_US
    last_end = 130
    assert last_end - trace.busy_us("kernel") == NO_KERNEL_US
    starts = sorted(run.start for run in small_schedule().runs.values() if run.resource == "h2d")
    assert [b - a for a, b in pairwise(starts)] == [COPY_MS] * (LAYERS - 1)
