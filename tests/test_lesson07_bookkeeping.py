"""Lesson 07's scheduler with a mistake: no race, but a wrong token, a lost slot or a wasted row."""

from __future__ import annotations

import pytest
from test_lesson07 import answer, one_thread  # noqa: F401
from test_lesson07_faults import found

from benchmarks.async_workloads_made import PREEMPT, Disturbance, Workload, lesson_06, lesson_07, run

AsyncBatching = lesson_07.AsyncBatching


class CarriesAnyChunk(AsyncBatching):
    def coming(self):
        return {row.request: n for n, row in enumerate(self.newest)}


class ForgetsLimits(AsyncBatching):
    def left(self, request, coming):
        return len(request.prompt) + len(request.tokens) + coming - request.done


class LimitOneLater(AsyncBatching):
    """Counts what has come, not what is coming."""

    def left(self, request, coming):
        return super().left(request, coming) or (coming and len(request.tokens) < request.limit)


class LimitOneEarlier(AsyncBatching):
    def left(self, request, coming):
        return super().left(request, coming) if len(request.tokens) + coming < max(1, request.limit - 1) else 0


class OldSources(AsyncBatching):
    """A request that was left out of the newest step is carried over from the one before."""

    old = None

    def coming(self):
        found = super().coming()
        both = {**(self.old or {}), **found}
        self.old = found
        return both


class ByName(AsyncBatching):
    """Whoever has the name gets what is coming."""

    def coming(self):
        rows = {row.request.prompt[0]: n for n, row in enumerate(self.newest) if row.last}
        return {request: rows[request.prompt[0]] for request in self.running if request.prompt[0] in rows}


class CountsRequests(AsyncBatching):
    """The source is the number of the request in the step, not of its row."""

    def coming(self):
        return {request: n for n, request in enumerate(super().coming())}


class StillWaitedFor(AsyncBatching):
    """Who leaves is waited for as before."""

    def release(self, request):
        lesson_06.Batching.release(self, request)


class FreesTwice(AsyncBatching):
    def release(self, request):
        self.free.append(request.slot)
        super().release(request)


class FreesNever(AsyncBatching):
    def release(self, request):
        super().release(request)
        if len(self.free) > 1:
            self.free.pop()


class GoesOn(AsyncBatching):
    """A preempted request does not start over."""

    def preempt(self, request):
        done = request.done
        super().preempt(request)
        request.done = done


class LosesTheLast(AsyncBatching):
    """A preempted request starts over with its prompt and all but its last token."""

    def preempt(self, request):
        super().preempt(request)
        del request.tokens[-1:], request.times_ms[-1:]


class KeepsTheNewest(AsyncBatching):
    """A step without rows leaves the last one's as the newest."""

    def step(self, at_ms):
        newest = self.newest
        rows = super().step(at_ms)
        if not rows:
            self.newest = newest
        return rows


class LastAnyway(AsyncBatching):
    """Each chunk's last row counts as the prompt's."""

    def rows(self, request, chunk, last, source):
        return super().rows(request, chunk, True, source)


class OnePlaceBefore(AsyncBatching):
    def step(self, at_ms):
        rows = super().step(at_ms)
        for row in rows:
            row.position -= row.source >= 0
        return rows


SCHEDULERS = (CarriesAnyChunk, ForgetsLimits, LimitOneLater, LimitOneEarlier, OldSources, ByName, CountsRequests,
              StillWaitedFor, FreesTwice, FreesNever, GoesOn, LosesTheLast, KeepsTheNewest, LastAnyway,
              OnePlaceBefore)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_wrong_bookkeeping_is_seen(scheduler):
    assert found(scheduler=scheduler)


def test_who_leaves_takes_no_token_from_a_row_under_way():
    """Preempted, it gets another slot; take drops the row's token, so nobody may count on it."""
    workload = Workload(((answer(2, None), 6, 0.0),), 2, 3, (Disturbance(2, 0, PREEMPT, False),))
    assert run(workload).wrong == []
    assert any("got" in text or "not through" in text for text in run(workload, scheduler=StillWaitedFor).wrong)
