"""Lesson 09's pipelines: orders, the share of bubbles, memory, transfers, and decoding in groups."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utils import dag
from utils.lessons import import_lesson

lesson = import_lesson("09_hide_the_network")
STAGES, MICRO, TIME = st.integers(1, 6), st.integers(1, 12), st.integers(1, 7)


def share(plan):
    """As bubble_share, exactly."""
    stages = lesson.stages_of(plan)
    return Fraction(sum(dag.idle(plan)[stage] for stage in stages), len(stages) * plan.makespan)


def planned(order, f=1, b=2, t=0):
    return lesson.scheduled(lesson.pipeline(order, f, b, t))


@settings(max_examples=60, deadline=None)
@given(STAGES, MICRO, TIME, TIME, st.sampled_from([lesson.gpipe, lesson.one_f_one_b]))
def test_the_share_of_bubbles_is_the_formulas(p, m, f, b, make):
    plan = planned(make(p, m), f, b)
    assert plan.makespan == (m + p - 1) * (f + b)
    assert share(plan) == Fraction(p - 1, m + p - 1)
    assert lesson.bubble_share(plan) == pytest.approx(lesson.bubble_formula(p, m))


@settings(max_examples=40, deadline=None)
@given(STAGES, st.integers(1, 3), st.integers(1, 4), TIME, TIME)
def test_chunks_divide_the_bubbles(p, rounds, v, f, b):
    plan = planned(lesson.interleaved(p, rounds * p, v), f, b)
    assert share(plan) == Fraction(p - 1, v * rounds * p + p - 1)
    assert lesson.bubble_share(plan) == pytest.approx(lesson.bubble_formula(p, rounds * p, v))


@given(STAGES, MICRO)
def test_what_each_stage_keeps(p, m):
    assert lesson.most_kept(lesson.gpipe(p, m)) == [m] * p
    assert lesson.most_kept(lesson.one_f_one_b(p, m)) == [min(p - s, m) for s in range(p)]
    assert lesson.most_kept(lesson.one_f_one_b(p, m, in_flight=2)) == [min(2 * (p - s) - 1, m) for s in range(p)]


@given(STAGES, st.integers(1, 3), st.integers(2, 4))
def test_what_each_stage_keeps_of_its_chunks(p, rounds, v):
    kept = lesson.most_kept(lesson.interleaved(p, rounds * p, v))
    assert kept == [min((v - 1) * p + 2 * (p - s) - 1, v * rounds * p) for s in range(p)]


@given(STAGES, st.integers(1, 3), st.integers(1, 3))
def test_an_order_has_every_task_once_and_forward_before_backward(p, rounds, v):
    m = rounds * p
    orders = [lesson.interleaved(p, m, v), *([lesson.gpipe(p, m), lesson.one_f_one_b(p, m, 2)] if v == 1 else [])]
    every = {(what, n, chunk) for what in "FB" for n in range(m) for chunk in range(v)}
    for order in orders:
        assert len(order) == p
        for tasks in order:
            assert len(tasks) == len(every) and set(tasks) == every
            at = {task: place for place, task in enumerate(tasks)}
            assert all(at["F", n, chunk] < at["B", n, chunk] for n in range(m) for chunk in range(v))


@settings(max_examples=40, deadline=None)
@given(STAGES, st.integers(1, 2), st.integers(1, 3), TIME, TIME, st.integers(0, 5))
def test_nothing_starts_before_it_has_arrived(p, rounds, v, f, b, t):
    plan = planned(lesson.interleaved(p, rounds * p, v), f, b, t)
    runs, last = plan.runs, p * v - 1
    for task in [task for task in runs if task[0] in "FB"]:
        what, n, place = task
        before = ("F", n, place - 1) if what == "F" else ("B", n, place + 1) if place < last else ("F", n, place)
        if before in runs:
            sent = 0 if p == 1 or before[0] != what else t
            assert runs[before].end + sent <= runs[task].start
        else:
            assert what == "F" and place == 0
    assert len(runs) == 2 * (last + 1) * rounds * p + (2 * last * rounds * p if t and p > 1 else 0)


@settings(max_examples=40, deadline=None)
@given(STAGES, MICRO, TIME, TIME, st.integers(0, 7))
def test_gpipe_pays_for_the_way_there_and_back_once(p, m, f, b, t):
    t = min(t, f, b)
    gpipe, turns, more = (planned(order, f, b, t).makespan
                          for order in (lesson.gpipe(p, m), lesson.one_f_one_b(p, m), lesson.one_f_one_b(p, m, 2)))
    assert gpipe == (m + p - 1) * (f + b) + 2 * (p - 1) * t
    assert gpipe <= more <= turns


def test_more_under_way_hides_transfers():
    times = {k: planned(lesson.one_f_one_b(4, 32, k), 2, 4, 1).makespan for k in (1, 2)}
    assert times[2] == planned(lesson.gpipe(4, 32), 2, 4, 1).makespan < times[1]


def test_an_order_that_cannot_run_is_refused():
    backward_first = [[("B", 0, 0), ("F", 0, 0)], [("F", 0, 0), ("B", 0, 0)]]
    with pytest.raises(dag.GraphError, match="cannot go on"):
        planned(backward_first)
    zero, one = ([("F", n, 0), ("B", n, 0)] for n in range(2))
    crossed = [zero + one, one + zero]
    with pytest.raises(dag.GraphError, match="cannot go on"):
        planned(crossed)


@pytest.mark.parametrize("call, says", [
    (lambda: lesson.gpipe(0, 1), "stages=0"), (lambda: lesson.one_f_one_b(1, 0), "micro_batches=0"),
    (lambda: lesson.one_f_one_b(4, 8, 0), "in_flight=0"), (lambda: lesson.interleaved(2, 2, 0), "chunks=0"),
    (lambda: lesson.interleaved(4, 6, 2), "needs a multiple of 4"), (lambda: lesson.bubble_formula(0, 1), "stages=0"),
    (lambda: lesson.bubble_formula(1, -3), "micro_batches=-3"), (lambda: lesson.decode(2, 0, 1), "groups=0"),
    (lambda: lesson.decode(2, 1, 0), "steps=0"), (lambda: lesson.pipeline([]), "stages=0"),
    (lambda: lesson.pipeline([[("F", 0, 0)], [("F", 0, 0), ("B", 0, 0)]]), "the same tasks for every stage"),
    (lambda: lesson.pipeline([[("F", 0, 0), ("F", 0, 0)]]), "each of them once")])
def test_what_makes_no_sense_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


@pytest.mark.parametrize("graph", [
    lambda: lesson.pipeline(lesson.gpipe(2, 2), 1, 2, -1), lambda: lesson.pipeline(lesson.gpipe(2, 2), -1),
    lambda: lesson.decode(2, 1, 1, 1, -1)])
def test_times_below_zero_are_refused(graph):
    with pytest.raises(dag.GraphError, match="cannot take less than no time"):
        lesson.scheduled(graph())


def test_a_pipeline_that_takes_no_time_has_no_bubbles():
    assert lesson.bubble_share(planned(lesson.gpipe(2, 2), 0, 0)) == 0


# ---- decoding

@settings(max_examples=40, deadline=None)
@given(STAGES, st.integers(1, 9), TIME, st.integers(0, 7))
def test_a_token_takes_the_round_trip_or_everybodys_turn(p, groups, f, t):
    t = min(t, f) if p > 1 else 0
    few, more = (lesson.scheduled(lesson.decode(p, groups, steps, f, t)).makespan for steps in (6, 10))
    assert more - few == 4 * max(groups * f, p * (f + t))


@given(STAGES, st.integers(1, 9))
def test_idle_share_once_under_way(p, groups):
    few, more = (lesson.scheduled(lesson.decode(p, groups, steps)).makespan for steps in (6, 10))
    assert 1 - Fraction(4 * groups, more - few) == max(0, 1 - Fraction(groups, p))


# ---- the picture

@pytest.mark.parametrize("schedule, name", [(0, "GPipe"), (1, "1F1B"), (2, "2 chunks"), (3, "3 chunks")])
@pytest.mark.parametrize("transfer", [0, 0.25])
def test_the_picture_says_what_the_schedule_is(schedule, name, transfer):
    text = lesson.pipeline_picture(4, 6, 2, transfer, schedule).text
    m = 8 if schedule > 1 else 6
    formula = f"{lesson.bubble_formula(4, m, max(1, schedule)):.1%}"
    assert f"{name}, {m} micro-batches" in text and f"formula {formula}" in text
    assert "stage 3" in text and "0 to 1" not in text
    assert (f"bubbles {formula}" in text) == (transfer == 0)


def test_the_answers_in_the_lesson():
    assert lesson.break_even_tokens(8, 450, 682) == lesson.break_even_tokens(8, 450, 2 * 682, weight_bytes=1) == 1327
    assert lesson.break_even_tokens(8, 450, 682, weight_bytes=1) == 664
    assert lesson.bubble_formula(8, 63) == 0.1 > lesson.bubble_formula(8, 64)
    assert lesson.bubble_formula(8, 31, 2) > 0.1 > lesson.bubble_formula(8, 32, 2)
    tokens = {groups: [lesson.scheduled(lesson.decode(3, groups, steps, 8, 1)).makespan for steps in (6, 10)]
              for groups in (3, 4)}
    assert [(more - few) / 4 for few, more in tokens.values()] == [27, 32]


@pytest.mark.parametrize("transfer, slower", [(10, False), (11, True)])
def test_from_which_transfer_on_chunks_lose(transfer, slower):
    """In twentieths of f: four stages, eight micro-batches, b = 2 f."""
    chunks = planned(lesson.interleaved(4, 8, 2), 10, 20, transfer).makespan
    assert (chunks > planned(lesson.gpipe(4, 8), 20, 40, transfer).makespan) == slower
    assert planned(lesson.one_f_one_b(4, 8), 20, 40, 1).makespan > planned(lesson.gpipe(4, 8), 20, 40, 1).makespan
