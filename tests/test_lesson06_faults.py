"""Lesson 06: what its model of whole numbers cannot show, and what its classes do with input that is wrong."""

from __future__ import annotations

import random

import pytest
from test_lesson06 import CARD, Continuous, prompt

from utils import simgpu
from utils.labs.lab06.data import Cells
from utils.lessons import import_lesson

lesson = import_lesson("06_continuous_batching")
Request = lesson.Request


# the model

def answers(words, count, wrong=()):
    """The `count` tokens after `words`; wrong: (layer, place, by how much) of cells that change before the last."""
    cells, answer = Cells(), []
    cells.step((word, 0, n, False) for n, word in enumerate(words[:-1]))
    for layer, place, by in wrong:
        cells.layers[layer][0, place] = (cells.layers[layer][0, place] + by) % lesson.PRIME
    for n in range(count):
        answer += cells.step([([words[-1], *answer][-1], 0, len(words) + n - 1, True)])
    return answer


@pytest.mark.parametrize("layers", [(0,), (1,), (0, 1)])
def test_what_a_wrong_cell_shows(layers):
    """It changes the next token in 49 of 50 cases; where it does not, it shows in one of the next eight."""
    rng, hidden = random.Random(0), 0
    for _ in range(3000):
        words, place = [rng.randrange(lesson.WORDS) for _ in range(8)], rng.randrange(7)
        wrong = [(layer, place, rng.randrange(1, lesson.PRIME)) for layer in layers]
        if answers(words, 1) == answers(words, 1, wrong):
            hidden += 1
            assert answers(words, 9) != answers(words, 9, wrong)
    assert 0.012 < hidden / 3000 < 0.028


def test_another_word_anywhere_is_seen():
    """Also the placeholder -1, and two words that changed places: at most one in 50 stays unseen."""
    rng, same = random.Random(1), 0
    for n in range(3000):
        words = [rng.randrange(lesson.WORDS) for _ in range(rng.randint(2, 20))]
        one, other = rng.sample(range(len(words)), 2)
        wrong = list(words)
        wrong[one], wrong[other] = [(-1, words[other]), (words[other], words[one])][n % 2]
        same += wrong != words and lesson.next_token(words) == lesson.next_token(wrong)
    assert 0.012 < same / 3000 < 0.028


def test_an_answer_ends_after_50_tokens_on_average():
    ends = [lesson.next_token([n % 50, n // 50 % 50, n // 2500]) == lesson.EOS for n in range(5000)]
    assert 0.015 < sum(ends) / 5000 < 0.025


class LastFirst(lesson.Batching):
    """A mistake: a prompt's chunks but its last token go through in the wrong order."""

    def step(self, at_ms):
        rows = super().step(at_ms)
        for row in rows:
            if not row.last and row.position < len(row.request.prompt) - 1:
                row.position = len(row.request.prompt) - 2 - row.position
                row.token = row.request.prompt[row.position]
        return rows


def test_a_prompt_in_the_wrong_order_is_a_wrong_token():
    requests = [Request("a", prompt(9, n, None), 5) for n in range(4)]
    with simgpu.session(CARD):
        scheduler = LastFirst(2, 3)
        scheduler.add(*requests)
        lesson.synchronous(lesson.IntegerModel(2, 16, products=1), scheduler)
    assert any(request.tokens != lesson.expected(request) for request in requests)


# bad input

@pytest.mark.parametrize("words, limit, arrival_ms", [
    ([], 3, 0), ([3], 0, 0), ([3], -1, 0), ([3], float("nan"), 0), ([3, -1], 2, 0),
    ([3], 1, -1), ([3], 1, float("nan")), ([3], 1, float("inf"))])
def test_requests_that_nobody_can_serve(words, limit, arrival_ms):
    with pytest.raises(ValueError, match="needed"):
        Request("a", words, limit, arrival_ms)


@pytest.mark.parametrize("slots, budget", [(2, 1), (0, 4), (-1, 4), (0, 0)])
def test_too_few_slots_or_rows(slots, budget):
    with pytest.raises(ValueError, match=str(slots)):
        lesson.Batching(slots, budget)


@pytest.mark.parametrize("limit, fits", [(8, True), (9, False)])
def test_more_tokens_than_cells(limit, fits):
    """Refused before anything runs: the last token of an answer needs no cell."""
    short, long = Request("a", [3], 9), Request("b", prompt(9, 0, None), limit)
    with simgpu.session(CARD):
        scheduler = lesson.Batching(2, 4)
        scheduler.add(short, long)
        model = lesson.IntegerModel(2, 16, products=1)
        if fits:
            lesson.synchronous(model, scheduler)
            assert long.tokens == lesson.expected(long)
            return
        with pytest.raises(ValueError, match=r"b may need 17 cells.*16"):
            lesson.synchronous(model, scheduler)
    assert short.tokens == [] and list(scheduler.waiting) == [short, long] and scheduler.cells > 16


def test_more_tokens_than_cells_added_while_others_are_served():
    class Adding(lesson.Batching):
        said = ()

        def step(self, at_ms):
            if not self.said and self.running:
                with pytest.raises(ValueError, match="late may need 17 cells") as error:
                    self.add(Request("fits", [5], 3), Request("late", [4] * 9, 9))
                self.said = (error,)
            return super().step(at_ms)

    first = Request("a", [3], 9)
    with simgpu.session(CARD):
        scheduler = Adding(2, 4)
        scheduler.add(first)
        lesson.synchronous(lesson.IntegerModel(2, 16, products=1), scheduler)
    assert scheduler.said and first.tokens == lesson.expected(first)


def test_more_slots_than_the_model_has():
    with simgpu.session(CARD):
        scheduler = lesson.Batching(3, 4)
        scheduler.add(Request("a", [3], 2))
        with pytest.raises(ValueError, match=r"3 slots.* 2"):
            lesson.synchronous(lesson.IntegerModel(2, 16, products=1), scheduler)


def take_right(scheduler, rows):
    """Give out the tokens that the model would."""
    tokens = [lesson.expected(row.request)[len(row.request.tokens)] if row.last else 0 for row in rows]
    lesson.take(scheduler, rows, tokens, 0)


@pytest.mark.parametrize("steps, cancelled, state", [
    (0, False, "waits"), (1, False, "has begun"), (2, False, "has a token"), (9, False, "is finished"),
    (0, True, "was cancelled while it waited"), (1, True, "was cancelled in its prompt"), (3, True, "was cancelled")])
def test_a_request_is_added_once(steps, cancelled, state):
    """And nothing of a call that is refused is added."""
    request, new = Request("a", [3, 4, 5, 6], 5), Request("new", [1], 2)
    scheduler = Continuous(2, 3).start([request])
    for _ in range(steps):
        take_right(scheduler, scheduler.step(0))
    if cancelled:
        scheduler.cancel(request)
    waiting, free = list(scheduler.waiting), list(scheduler.free)
    with pytest.raises(ValueError, match=r"^a: added before"):
        scheduler.add(new, request)
    with pytest.raises(ValueError, match=r"^new: added before"):
        scheduler.add(new, new)
    assert list(scheduler.waiting) == waiting and list(scheduler.free) == free
    scheduler.known.append(new)
    scheduler.add(new)
    while scheduler.waiting or scheduler.running:
        take_right(scheduler, scheduler.step(0))
    assert new.tokens == lesson.expected(new) and (cancelled or request.tokens == lesson.expected(request))


@pytest.mark.parametrize("limit", [1, 3])
def test_cancelled_between_its_rows_and_its_token(limit):
    request, scheduler = Request("a", [3], limit), lesson.Batching(1, 2)
    scheduler.add(request)
    rows = scheduler.step(0)
    scheduler.cancel(request)
    lesson.take(scheduler, rows, [7], 0)
    assert request.tokens == [] and list(scheduler.free) == [0]


def test_its_slot_is_taken_again_before_its_token_is_there():
    a, b, scheduler = Request("a", [3], 4), Request("b", [5, 6], 4), lesson.Batching(1, 2)
    scheduler.add(a, b)
    rows = scheduler.step(0)
    scheduler.cancel(a)
    later = scheduler.step(0)
    assert [row.slot for row in (*rows, *later)] == [0, 0, 0] and a.slot is None
    lesson.take(scheduler, rows, [7], 0)
    lesson.take(scheduler, later, [8, 9], 0)
    assert a.tokens == [] and b.tokens == [9] and b.slot == 0


def test_rows_keep_their_slots():
    """Also of a request that has left before its rows are copied."""
    a, b, scheduler = Request("a", [3], 4), Request("b", [5, 6], 4), lesson.Batching(2, 4)
    scheduler.add(a, b)
    rows = scheduler.step(0)
    scheduler.cancel(b)
    with simgpu.session(CARD):
        buffers = lesson.Buffers(4)
        buffers.fill(rows)
        assert buffers.host_in[:, :3].tolist() == [[3, 5, 6], [0, 1, 1], [0, 0, 1]]


def test_the_synchronous_loop_refuses_what_it_cannot_serve():
    later = import_lesson("07_async_batching")
    with simgpu.session(simgpu.H200):
        ahead = later.AsyncBatching(slots=1, budget=2)
        ahead.add(lesson.Request("a", [1, 2], 2))
        with pytest.raises(TypeError, match="AsyncBatching plans a step before the last one's tokens"):
            lesson.synchronous(lesson.IntegerModel(1, 8), ahead)
        scheduler = lesson.Batching(slots=1, budget=2)
        request = lesson.Request("b", [1, 2], 2)
        scheduler.add(request)
        scheduler.step(0)                                   # and whatever kept its rows from running
        with pytest.raises(ValueError, match="b: running since a loop that stopped early"):
            lesson.synchronous(lesson.IntegerModel(1, 8), scheduler)
        scheduler.cancel(request)
        scheduler.add(again := lesson.Request("b", [1, 2], 2))
        assert lesson.synchronous(lesson.IntegerModel(1, 8), scheduler) == 2 and len(again.tokens) == 2
