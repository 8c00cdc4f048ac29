"""Lab 09, puzzle 4: orders of a pipeline that stop, keep too much or rest too long are refused; right ones pass."""

import random
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
import torch
from answers import trial

from utils.labs import timelimit
from utils.labs.lab09 import check
from utils.labs.lab09.ordering import SIZES
from utils.labs.lab09.stages import Orders, Size, one_f_one_b
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/09_hide_the_network")
PUZZLE = "stage_order"
judged, refused, passes = trial(check)


def test_stub_is_not_done_yet():
    def stub(stage, stages, micro_batches):
        raise NotImplementedError()
    assert judged(stub, PUZZLE).pending


def test_solution_passes():
    verdict = check.judge(SOLUTION.stage_order)
    assert verdict.passed and not verdict.advice and verdict.tried, str(verdict)


def turns(first=lambda s, p, m: min(p - s, m), back=lambda n, m: n, left=True, limit=True,
          last=lambda order, s, p, m: order):
    """The worked answer with something else in one place. ``back``: which micro-batch's backward comes n-th."""
    def answer(s, p, m):
        count = first(s, p, m)
        order = [("F", n) for n in range(count)]
        for n in range(m):
            more = n + count < m or not limit
            order += [("B", back(n, m))] if more or left else []
            order += [("F", n + count)] if more else []
        return last(order, s, p, m)
    return answer


def gpipe(s, p, m):
    return [(what, n) for what in "FB" for n in range(m)]


def gpipe_backwards(s, p, m):
    return [("F", n) for n in range(m)] + [("B", n) for n in reversed(range(m))]


def paired_warm_up(s, p, m):
    """Ends with as many backwards as forwards came first, without looking at m."""
    first = p - s - 1
    order = [("F", n) for n in range(first)]
    for n in range(m - first):
        order += [("F", n + first), ("B", n)]
    return order + [("B", n) for n in range(m - first, m)]


def backward_first(s, p, m):
    return [(what, n) for n in range(m) for what in "BF"]


def swap_two(order, s, p, m):
    """Two forwards in turn on one stage only: nothing is lost but time."""
    if s == 1 and m > 2:
        a, b = order.index(("F", 1)), order.index(("F", 2))
        order[a], order[b] = order[b], order[a]
    return order


def swap_backwards(order, s, p, m):
    """Stage 1 waits for the second backward first."""
    if s == 1 and m > 2:
        a, b = order.index(("B", 0)), order.index(("B", 1))
        order[a], order[b] = order[b], order[a]
    return order


WRONG = {
    "GPipe": (gpipe, "that is GPipe, which keeps every micro-batch"),
    "GPipe, last backward first": (gpipe_backwards, "that is GPipe"),
    "warm-up one too long": (turns(first=lambda s, p, m: min(p - s + 1, m)), "It begins with 5 forwards."),
    "warm-up one too short": (turns(first=lambda s, p, m: max(1, min(p - s - 1, m))),
                              "Stage 0 begins with 3 forwards, and then rests"),
    "no warm-up": (turns(first=lambda s, p, m: 1), "Stage 0 begins with 1 forward, and then rests"),
    "the same warm-up everywhere": (turns(first=lambda s, p, m: min(p, m)), "Every stage begins with 4 forwards."),
    "stages counted backwards": (turns(first=lambda s, p, m: min(s + 1, m)), "stage 3 has come to F 1 and waits for"),
    "two at a time": (turns(first=lambda s, p, m: min(2 * (p - s) - 1, m)), "keeps the activations of 5 micro-batches"),
    "newest backward first": (turns(back=lambda n, m: m - 1 - n), "waits for F 7 of this stage"),
    "newest kept first": (turns(first=lambda s, p, m: min(p - s, m), back=lambda n, m: n ^ 1 if n ^ 1 < m else n),
                          "Nothing goes on any more"),
    "backwards before forwards": (backward_first, "waits for F 0 of this stage"),
    "last backwards missing": (turns(left=False), "The last backwards are missing, 4 of them"),
    "last forwards missing": (turns(last=lambda order, s, p, m: [task for task in order if task != ("F", m - 1)]),
                              "F 7 is missing"),
    "backward in another order on one stage": (turns(last=swap_backwards), "Stage 0 rests from 4 to"),
    "forward in another order on one stage": (turns(last=swap_two), "before F 2, which waits for F 2 of stage 0"),
    "breaks when m < p": (turns(first=lambda s, p, m: p - s), "There are fewer micro-batches than stages here"),
    "breaks when m < p, too": (paired_warm_up, "there is no F 1, stage 0 of 4 stages, 1 micro-batch"),
    "no limit behind": (turns(limit=False), "there is no F 8"),
    "a task twice": (turns(last=lambda order, s, p, m: order + order[-1:]), "B 7 twice"),
    "for all stages": (lambda s, p, m: [SOLUTION.stage_order(k, p, m) for k in range(p)], "is no task, stage 0"),
    "names": (lambda s, p, m: [f"{what}{n}" for what, n in SOLUTION.stage_order(s, p, m)], "'F0' is no task"),
    "letters": (lambda s, p, m: [what for what, _ in SOLUTION.stage_order(s, p, m)], "is no task"),
    "small letters": (lambda s, p, m: [(what.lower(), n) for what, n in SOLUTION.stage_order(s, p, m)],
                      "there is no f 0"),
    "halves": (lambda s, p, m: [(what, n + 0.5) for what, n in SOLUTION.stage_order(s, p, m)], "is no task"),
    "a number": (lambda s, p, m: m, "Return a list of"),
    "text": (lambda s, p, m: "FBFB", "Return a list of"),
    "a set": (lambda s, p, m: set(SOLUTION.stage_order(s, p, m)), "Return a list of"),
    "nothing": (lambda s, p, m: [], "F 0 is missing"),
    "none": (lambda s, p, m: None, "returned None"),
    "raises": (lambda s, p, m: [s / 0], "it raised ZeroDivisionError"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_orders_are_refused(name):
    refused(*WRONG[name], PUZZLE)


def test_refusals_for_memory_and_time_are_drawn_beside_the_target():
    for name in ("GPipe", "no warm-up"):
        text = judged(WRONG[name][0], PUZZLE).picture.text
        assert "yours:" in text and "target:" in text and "(target)" in text, text
    assert "stage 0" in judged(WRONG["newest backward first"][0], PUZZLE).picture.text


def test_a_loop_without_end_is_refused(monkeypatch):
    def endless(s, p, m):
        while True:
            yield "F", 0
    refused(endless, "F 0 twice", PUZZLE)
    monkeypatch.setattr(timelimit, "LIMIT_S", 0.3)

    def loops(s, p, m):
        while True:
            pass
    refused(loops, "is there a loop that never ends?", PUZZLE)


def last_micro_batch_first(s, p, m):
    """The micro-batches in another order, the same on all stages."""
    return [(what, m - 1 - n) for what, n in SOLUTION.stage_order(s, p, m)]


def by_simulation(s, p, m):
    """A backward whenever that is the next of a stage that keeps as many as it may."""
    order, sent, back = [], 0, 0
    while back < m:
        if sent < m and sent - back < min(p - s, m):
            order.append(("F", sent))
            sent += 1
        else:
            order.append(("B", back))
            back += 1
    return order


RIGHT = [turns(), last_micro_batch_first, by_simulation, lambda s, p, m: (task for task in by_simulation(s, p, m)),
         lambda s, p, m: tuple([what, np.int64(n)] for what, n in by_simulation(s, p, m)),
         lambda s, p, m: [(what, Fraction(n)) for what, n in by_simulation(s, p, m)],
         lambda s, p, m: [(what, torch.tensor(n)) for what, n in by_simulation(s, p, m)],
         lambda s, p, m: np.array(by_simulation(s, p, m), dtype=object)]


@pytest.mark.parametrize("at", range(len(RIGHT)))
def test_right_orders_pass(at):
    passes(RIGHT[at], PUZZLE)


# --- the judge -----------------------------------------------------------------------------------------------------

def orders_of(answer, size):
    return Orders(size, tuple(tuple(answer(stage, *size)) for stage in range(size.stages)))


@pytest.mark.parametrize("size", [*SIZES, Size(2, 9), Size(7, 7)], ids=str)
def test_the_target_is_what_the_worked_answer_makes(size):
    orders = orders_of(SOLUTION.stage_order, size)
    assert orders == one_f_one_b(size)
    for f, b in ((1, 2), (1, 1), (3, 1), (2, 7)):
        assert orders.plan(f, b).makespan == (size.micro_batches + size.stages - 1) * (f + b)
    assert [max(orders.kept(stage)) for stage in range(size.stages)] == [size.most(s) for s in range(size.stages)]


def test_orders_stop_exactly_where_they_are_a_circle():
    rng = random.Random(3)
    seen = set()
    for _ in range(200):
        size = Size(rng.randrange(1, 4), rng.randrange(1, 4))
        orders = one_f_one_b(size)
        of = tuple(tuple(rng.sample(tasks, len(tasks)) if rng.random() < 0.3 else tasks) for tasks in orders.of)
        orders = Orders(size, of)
        graph = nx.DiGraph((before, (*task, stage)) for stage, tasks in enumerate(of) for task in tasks
                           for before in orders.needs((*task, stage)))
        for stage, tasks in enumerate(of):
            nx.add_path(graph, [(*task, stage) for task in tasks])
        runs = orders.reached() == [len(tasks) for tasks in of]
        assert runs == nx.is_directed_acyclic_graph(graph)
        seen.add(runs)
    assert seen == {True, False}


def test_no_fewer_micro_batches_reach_the_target():
    """With one fewer kept on a stage the step takes longer, unless that stage keeps one anyway."""
    size = Size(4, 8)
    for fewer in range(3):
        first = turns(first=lambda s, p, m, fewer=fewer: min(p - s, m) - (s == fewer))
        assert orders_of(first, size).plan(1, 2).makespan > 33


def test_the_lesson_has_the_same_order():
    lesson = import_lesson("09_hide_the_network")
    for size in SIZES:
        wanted = tuple(tuple((what, n) for what, n, _ in tasks) for tasks in lesson.one_f_one_b(*size))
        assert one_f_one_b(size).of == wanted
