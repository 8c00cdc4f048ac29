"""Lab 08, inside or outside: each wrong place is refused with what the simulator shows of that operation."""

from collections import OrderedDict
from types import MappingProxyType

import numpy as np
import pytest
from lab08_answers import SOLUTION, judged, passes, refused

from utils.labs.lab08.places import OPERATIONS, tried

PUZZLE = "inside_or_outside"
RIGHT = SOLUTION.inside_or_outside()
FROZEN = "captured without a word, but with the values of that moment"
SAME = "Captured, three replays give the same as three steps in Python"

ONE_WRONG = {
    "forward": SAME,
    "carry": SAME,
    "cells": SAME,
    "rows": SAME,
    "fork": SAME,
    "noise": "Captured, each replay gives other numbers",
    "cell": FROZEN,
    "drawn": FROZEN,
    "count": FROZEN,
    "new_rows": "captured without a word, and the replays have 3 hazards",
    "arrived": "waited for an event recorded outside the capture",
    "stop": "operation not permitted when stream is capturing",
    "live": "operation not permitted when stream is capturing",
}


@pytest.mark.parametrize("name", ONE_WRONG)
def test_each_wrong_place_is_refused_with_its_witness(name):
    other = {"inside": "outside", "outside": "inside"}[RIGHT[name]]
    refused(lambda: {**RIGHT, name: other}, ONE_WRONG[name], PUZZLE)
    refused(lambda: {**RIGHT, name: other}, f"{name} is not {other}", PUZZLE)


WRONG = [
    (lambda: dict.fromkeys(RIGHT, "outside"), "Outside it is 4 launches in each step"),
    (lambda: dict.fromkeys(RIGHT, "inside"), "cell is not inside"),
    (lambda: {name: "outside" if "copy_" in OPERATIONS[name].line else place for name, place in RIGHT.items()},
     "forward is not outside"),
    (lambda: {name: "inside" for name, place in RIGHT.items() if place == "inside"}, "Missing: cell"),
    (lambda: {**RIGHT, "sampling": "inside"}, "Not in the table: 'sampling'"),
    (lambda: {**RIGHT, "fork": True}, 'Say "inside" or "outside".'),
    (lambda: [name for name, place in RIGHT.items() if place == "inside"], "Return a dict"),
    (lambda: None, "returned None"),
    (lambda: RIGHT["nobody"], "it raised KeyError"),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_wrong_answers_are_refused(at):
    refused(*WRONG[at], PUZZLE)


@pytest.mark.parametrize("answer", [lambda: OrderedDict(reversed(RIGHT.items())), lambda: MappingProxyType(RIGHT),
                                    lambda: {name: np.str_(place) for name, place in RIGHT.items()}])
def test_right_answers_pass(answer):
    passes(answer, PUZZLE)


def test_stub_and_solution():
    def stub():
        raise NotImplementedError()
    assert judged(stub, PUZZLE).pending
    verdict = passes(SOLUTION.inside_or_outside, PUZZLE)
    assert not verdict.advice and verdict.tried


def test_the_table_of_the_lab_has_every_operation():
    """And its line as it is tried, but for the names of the slot's tensors."""
    import nbformat
    from conftest import ROOT

    cells = nbformat.read(ROOT / "labs" / "08_cuda_graphs.ipynb", as_version=4).cells
    table = next(cell.source for cell in cells if cell.id == "places-text")
    rows = {row.split(" | ")[0].strip("| "): row for row in table.split("\n") if row.startswith("| ")}
    assert rows.keys() - {"name"} == OPERATIONS.keys() == RIGHT.keys()
    for name, operation in OPERATIONS.items():
        assert all(part in rows[name] for part in operation.line.split(", a kernel on side, ")), name


def test_a_trial_tells_what_the_device_does():
    assert tried("cells").replayed == tried("cells").outside != tried("cell").replayed
    assert tried("noise").changes and not tried("drawn").changes
