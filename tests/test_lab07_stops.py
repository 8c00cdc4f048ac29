"""Lab 07, who stops, and the wall time: each wrong answer is refused in words, right ones pass, however written."""

from collections import deque
from statistics import mean

import numpy as np
import pytest
from lab07_answers import SOLUTION, judged, passes, refused

from utils.labs.lab07 import Serving, check
from utils.labs.lab07.judge import USUAL
from utils.labs.lab07.serving import Case, lesson, serve
from utils.labs.lab07.wall import CASES, loop_of, right_wall

PUZZLES = ("two_slots", "launch", "CarryOver", "serve", "Stopping", "wall_ms")


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_stub_is_not_done_yet(puzzle):
    def stub(*_):
        raise NotImplementedError()

    class Carry:
        def row(self, newest, request):
            raise NotImplementedError()

        def carry(self, tokens, sources, before):
            raise NotImplementedError()

    class Stops(Serving):
        def has_row(self, request, coming):
            raise NotImplementedError()
    assert judged({"CarryOver": Carry, "Stopping": Stops}.get(puzzle, stub), puzzle).pending


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_solution_passes(puzzle):
    verdict = check.judge(getattr(SOLUTION, puzzle))
    assert verdict.passed and not verdict.advice and verdict.tried and verdict.picture, str(verdict)


@pytest.mark.parametrize("puzzle", ["CarryOver", "Stopping"])
def test_a_half_stub_is_told_what_is_missing(puzzle):
    class Half(Serving):
        def has_row(self, request, coming):
            return True

    class NoRow:
        def carry(self, tokens, sources, before):
            return tokens
    half = {"CarryOver": (NoRow, "Write row(self, ...), too."), "Stopping": (Half, "Write take(self, ...), too.")}
    refused(*half[puzzle], puzzle)


# --- 5: who stops --------------------------------------------------------------------------------------------------

class Right(Serving):
    """The worked answer in parts, of which each wrong variant replaces one."""

    def has_row(self, request, coming):
        return len(request.tokens) + coming < request.limit

    def take(self, rows, tokens):
        for row, token in zip(rows, tokens, strict=True):
            if self.wanted(row):
                row.request.tokens.append(token)
                if row.request.finished:
                    self.release(row.request)

    def wanted(self, row):
        return row.last

    def release(self, request):
        self.leave(request)
        self.free.append(request.slot)
        self.forget(request)

    def leave(self, request):
        self.running = [other for other in self.running if other is not request]

    def forget(self, request):
        for row in self.newest:
            if row.request is request:
                row.last = False


class LimitRowWasted(Right):
    def has_row(self, request, coming):
        return len(request.tokens) < request.limit


class OneTooMany(Right):
    def has_row(self, request, coming):
        return len(request.tokens) + coming <= request.limit


class WaitsToKnow(Right):
    def has_row(self, request, coming):
        return not coming and not request.finished


class OneTooFew(Right):
    def has_row(self, request, coming):
        return len(request.tokens) + coming < request.limit - 1


class Always(Right):
    def has_row(self, request, coming):
        return True


class TokenAfterEos(Right):
    def forget(self, request):
        pass


class OnlyWhileRunning(Right):
    """A preempted request runs again by then."""
    forget = TokenAfterEos.forget

    def wanted(self, row):
        return row.last and any(other is row.request for other in self.running)


class BySlot(Right):
    """As lesson 06 does, where no row is under way."""
    forget = TokenAfterEos.forget

    def wanted(self, row):
        return row.last and row.request.slot == row.slot and any(other is row.request for other in self.running)


class FreedTwice(Right):
    """Once in release, and once more when the row under way is over."""

    def take(self, rows, tokens):
        for row, token in zip(rows, tokens, strict=True):
            if row.last and not row.request.finished:
                row.request.tokens.append(token)
            if row.last and row.request.finished:
                self.leave(row.request)
                self.free.append(row.slot)


class EosAndLimit(Right):
    def take(self, rows, tokens):
        for row, token in zip(rows, tokens, strict=True):
            if row.last:
                row.request.tokens.append(token)
                if token == 0:
                    self.release(row.request)
                if len(row.request.tokens) >= row.request.limit:
                    self.release(row.request)


class OnlyLimit(Right):
    def take(self, rows, tokens):
        for row, token in zip(rows, tokens, strict=True):
            if row.last:
                row.request.tokens.append(token)
                if len(row.request.tokens) >= row.request.limit:
                    self.release(row.request)


class OnlyEos(Right):
    def take(self, rows, tokens):
        for row, token in zip(rows, tokens, strict=True):
            if row.last:
                row.request.tokens.append(token)
                if token == 0:
                    self.release(row.request)


class NeverFreed(Right):
    def release(self, request):
        self.leave(request)
        self.forget(request)


class StaysRunning(Right):
    def leave(self, request):
        pass


class TokenPerChunk(Right):
    def wanted(self, row):
        return row.last or row.position < len(row.request.prompt) - 1


class ByName(Right):
    """Forgets names for good."""

    def __init__(self, slots):
        super().__init__(slots)
        self.gone = set()

    def forget(self, request):
        self.gone.add(request.name)

    def wanted(self, row):
        return row.last and row.request.name not in self.gone


class TokensByName(Right):
    """Gives a token to whoever has the name now."""

    def take(self, rows, tokens):
        named = {request.name: request for request in self.running}
        for row, token in zip(rows, tokens, strict=True):
            request = named.get(row.request.name)
            if row.position >= len(row.request.prompt) - 1 and request and not request.finished:
                request.tokens.append(token)
                if request.finished:
                    self.release(request)


class NoneFreed(Right):
    def release(self, request):
        request.slot = None
        super().release(request)


class KeepsSlotOfRows(Right):
    """The slot of a row that is under way comes back when it is over, and nobody brings it."""

    def release(self, request):
        self.leave(request)
        if not any(row.request is request for row in self.newest):
            self.free.append(request.slot)
        self.forget(request)


class GivesNothing(Right):
    def take(self, rows, tokens):
        pass


class NoSuper(Right):
    def __init__(self, slots):
        self.slots = slots


class Raises(Right):
    def release(self, request):
        self.running.remove(request.name)


STOPS = [
    (LimitRowWasted, "a limit is known in advance"), (OneTooMany, "a limit is known in advance"),
    (Always, "a limit is known in advance"), (WaitsToKnow, "takes twice as long"), (OneTooFew, "has no row"),
    (TokenAfterEos, "is finished. Its row"), (OnlyWhileRunning, "its new prefill computes this one again"),
    (BySlot, "its new prefill computes this one again"), (FreedTwice, "is in free, and c runs in it"),
    (EosAndLimit, "is free twice"), (OnlyLimit, "still in running"), (OnlyEos, "still in running"),
    (NeverFreed, "neither free nor taken"), (StaysRunning, "still in running"),
    (TokenPerChunk, "is no token of the answer"), (ByName, "does not get it"),
    (TokensByName, "earlier request with the name"),
    (NoneFreed, "Is request.slot read before it is set to None?"), (KeepsSlotOfRows, "neither free nor taken"),
    (GivesNothing, "does not get it"), (NoSuper, "super().__init__(slots)"), (Raises, "it raised ValueError"),
]


@pytest.mark.parametrize("at", range(len(STOPS)), ids=[one.__name__ for one, _ in STOPS])
def test_wrong_stops_are_refused(at):
    refused(*STOPS[at], "Stopping")


class ByIdentity(Right):
    """Remembers rows, and keeps the lists as they are."""

    def __init__(self, slots):
        super().__init__(slots)
        self.void, self.free = [], deque(self.free)

    def leave(self, request):
        del self.running[[other is request for other in self.running].index(True)]

    def forget(self, request):
        self.void = [row for row in self.newest if row.request is request]

    def wanted(self, row):
        return row.last and not any(row is other for other in self.void)

    def release(self, request):
        self.void += [row for row in self.newest if row.request is request]
        self.leave(request)
        self.free.appendleft(request.slot)
        request.slot = None


class TakesRowsAway(Right):
    """A row that is under way for nobody has no request any more."""

    def has_row(self, request, coming):
        return request.limit - len(request.tokens) > (1 if coming else 0)

    def forget(self, request):
        for row in self.newest:
            row.request = None if row.request is request else row.request

    def wanted(self, row):
        return row.request is not None and row.last


class FinishedLater(Right):
    """First all tokens, then all that have ended."""

    def take(self, rows, tokens):
        for row, token in zip(rows, tokens, strict=True):
            if row.last:
                row.request.tokens.append(token)
        for request in list(self.running):
            if request.finished:
                self.release(request)


@pytest.mark.parametrize("answer", [Right, ByIdentity, TakesRowsAway, FinishedLater])
def test_right_stops_pass(answer):
    passes(answer, "Stopping")


# --- 6: the wall time ----------------------------------------------------------------------------------------------

WALL = [
    (lambda host, gpu: sum(gpu), "has the GPU as the bound in every step"),
    (lambda host, gpu: host[0] + sum(gpu), "has the GPU as the bound in every step"),
    (lambda host, gpu: sum(host) + gpu[-1], "has the host as the bound in every step"),
    (lambda host, gpu: sum(host) + sum(gpu), "That is the synchronous loop"),
    (lambda host, gpu: sum(map(max, host[1:], gpu)), "The ends are missing"),
    (lambda host, gpu: sum(map(max, host[1:], gpu)) + gpu[-1], "The ends are missing"),
    (lambda host, gpu: sum(map(max, host, gpu)), "That pairs host and GPU of the same step."),
    (lambda host, gpu: sum(map(max, host, gpu)) + min(host[0], gpu[-1]), "That pairs host and GPU of the same step."),
    (lambda host, gpu: max(host[0] + sum(gpu), sum(host) + gpu[-1]), "That takes the larger sum."),
    (lambda host, gpu: max(sum(host), sum(gpu)), "That takes the larger sum."),
    (lambda host, gpu: gpu[0] + sum(map(max, gpu[1:], host)) + host[-1], "The host prepares a step before it runs."),
    (lambda host, gpu: right_wall(host, gpu) / len(host), "Return that of the whole run."),
    (lambda host, gpu: len(host) * max(mean(host), mean(gpu)), "That takes the larger sum."),
    (lambda host, gpu: 1.05 * right_wall(host, gpu), "Which part of the host's work"),
    (lambda host, gpu: "33 ms", "Return one number"),
    (lambda host, gpu: None, "returned None"),
    (lambda host, gpu: host[99], "it raised IndexError"),
]


@pytest.mark.parametrize("at", range(len(WALL)))
def test_wrong_wall_times_are_refused(at):
    refused(*WALL[at], "wall_ms")


def by_clock(host, gpu):
    """Host and GPU with a clock each."""
    ready = done = before = 0.0
    for prepare, compute in zip(host, gpu, strict=True):
        ready = max(ready, before) + prepare
        before, done = done, max(done, ready) + compute
    return done


@pytest.mark.parametrize("answer", [by_clock, lambda host, gpu: np.float64(right_wall(host, gpu)),
                                    lambda host, gpu: host[0] + np.maximum(host[1:], gpu[:-1]).sum() + gpu[-1],
                                    lambda host, gpu: round(right_wall(host, gpu))])
def test_right_wall_times_pass(answer):
    passes(answer, "wall_ms")


@pytest.mark.parametrize(("host_us", "gpu_us"), [(200, 1000), (500, 1000), (1000, 300), (600, 600)])
def test_the_formula_holds_for_the_lessons_loop(host_us, gpu_us):
    run = serve(Case(USUAL, host_us=host_us, gpu_us=gpu_us), lesson().Streams)
    host = (run.wall_us - run.trace.busy_us("sync")) / run.steps
    gpu = run.trace.busy_us("kernel") / run.steps
    assert right_wall((host,) * run.steps, (gpu,) * run.steps) == pytest.approx(run.wall_us, rel=0.02)


def test_the_formula_is_the_graph_of_the_loop():
    for case in CASES:
        assert loop_of(case).makespan == pytest.approx(right_wall(case.host, case.gpu))
