"""Lesson 07's loop among others: who calls it, with what, how often, and from which stream; errors in the middle."""

from __future__ import annotations

import pytest
import torch
from interrupts import Broken, Interrupts
from test_lesson07 import CARD, one_thread  # noqa: F401

from benchmarks.async_workloads_made import lesson_06, lesson_07, prompt
from benchmarks.async_workloads_waits import wrong_waits
from utils import simgpu

Request = lesson_06.Request
BUSY = simgpu.H200.with_op_time(mm=900_000)          # work is under way whenever the host meets an error


def serve(model, requests, scheduler=None, **ways):
    scheduler = scheduler or lesson_07.AsyncBatching(2, 4)
    scheduler.add(*requests)
    steps = lesson_07.asynchronous(model, scheduler, **ways)
    assert [request.tokens for request in requests] == [lesson_06.expected(request) for request in requests]
    assert sorted(scheduler.free) == [0, 1] and not scheduler.running
    return steps


def some(count=3, seed=0):
    return [Request("a", list(prompt(1 + n % 4, seed + n, None)), 2 + n % 4) for n in range(count)]


def test_nobody_comes():
    with simgpu.session(CARD) as gpu:
        assert serve(lesson_06.IntegerModel(2, 16, products=1), []) == 0
        assert gpu.hazards == [] and gpu.notes == []


@pytest.mark.parametrize("one_scheduler", [True, False])
def test_loops_one_after_the_other(one_scheduler):
    """More of them than there are streams in the pool, so that they come again."""
    with simgpu.session(CARD) as gpu:
        model, scheduler = lesson_06.IntegerModel(2, 16, products=1), lesson_07.AsyncBatching(2, 4)
        for n in range(13):
            serve(model, some(2, n), scheduler if one_scheduler else None)
        assert gpu.hazards == []


def test_after_the_synchronous_loop_and_before_it():
    with simgpu.session(CARD) as gpu:
        model = lesson_06.IntegerModel(2, 16, products=1)
        loops = ((lesson_06.synchronous, lesson_06.Batching), (lesson_07.asynchronous, lesson_07.AsyncBatching))
        for loop, kind in loops * 2:
            requests, scheduler = some(), kind(2, 4)
            scheduler.add(*requests)
            loop(model, scheduler)
            assert [request.tokens for request in requests] == [lesson_06.expected(request) for request in requests]
        assert gpu.hazards == []


@pytest.mark.parametrize("waits", [True, False])
def test_from_a_stream_that_is_not_the_default_one(waits):
    """All is ordered after the caller's stream, and only after that: S16's rule is the caller's."""
    with simgpu.session(CARD) as gpu:
        model, mine = lesson_06.IntegerModel(2, 16, products=1), torch.cuda.Stream()
        model.cells.zero_()
        if waits:
            mine.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(mine):
            serve(model, some())
            assert torch.cuda.current_stream() == mine
        model.cells.sum().item()                                    # everything was waited for: read anywhere
        assert bool(gpu.hazards) != waits


def test_a_model_that_was_made_on_the_callers_stream():
    with simgpu.session(CARD) as gpu, torch.cuda.stream(torch.cuda.Stream()):
        serve(lesson_06.IntegerModel(2, 16, products=1), some())
        assert gpu.hazards == []


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_a_scheduler_in_which_requests_run_already(rows):
    """Stepped by hand before, with tokens taken or not: they start over with what they have."""
    with simgpu.session(CARD) as gpu:
        scheduler, requests = lesson_07.AsyncBatching(2, 4), some()
        scheduler.add(*requests)
        if not rows:
            scheduler.admit(0)
        for n in range(rows):
            step = scheduler.step(0)
            if n % 2 == 0:                                           # these tokens are right; the others are lost
                tokens = [lesson_06.expected(row.request)[len(row.request.tokens)] if row.last else 0 for row in step]
                lesson_07.take(scheduler, step, tokens, 0)
        serve(lesson_06.IntegerModel(2, 16, products=1), some(2, 5), scheduler)
        assert [request.tokens for request in requests] == [lesson_06.expected(request) for request in requests]
        assert gpu.hazards == []


def test_what_the_model_has_no_room_for_is_refused():
    with simgpu.session(CARD):
        for slots, limit, said in ((3, 2, "3 slots"), (2, 17, "may need 17 cells")):
            scheduler = lesson_07.AsyncBatching(slots, 4)
            scheduler.add(Request("a", [3], limit))
            with pytest.raises(ValueError, match=said):
                lesson_07.asynchronous(lesson_06.IntegerModel(2, 16, products=1), scheduler)
            assert len(scheduler.waiting) == 1 and not scheduler.running


def test_one_wait_per_step_and_three_streams():
    """Copies in, products and copies out, each in a stream of its own; nothing of a step runs in the caller's."""
    with simgpu.session(CARD) as gpu:
        model = lesson_06.IntegerModel(2, 16, products=1)
        torch.cuda.synchronize()
        since_us = simgpu.clock()
        steps = serve(model, some())
        trace, streams = gpu.trace(), {"h2d": [], "kernel": [], "d2h": []}
        assert wrong_waits(trace, steps, 32, gpu.profile.sync_ns, since_us) == []
        for kind, stream, start in zip(*(trace.columns[name] for name in ("kind", "stream", "start_us")), strict=True):
            if kind in streams and start >= since_us:
                streams[kind].append(stream)
        assert [len(set(found) - {0}) for found in streams.values()] == [1, 1, 1]
        assert len({0}.union(*streams.values())) == 4 and 0 not in streams["h2d"] + streams["d2h"]
        assert streams["kernel"].count(0) == 4                      # the slots' tensors are zeroed, once


# errors in the middle

class Seen(lesson_07.Streams):
    """Keeps the one that was made last."""

    made = None

    def __init__(self, model, rows):
        super().__init__(model, rows)
        type(self).made = self


def fails(model, scheduler, error, through=None, **ways):
    """The loop ends with that error, and with nothing left in its three streams."""
    Seen.made = None
    with pytest.raises(error):
        if through is None:
            lesson_07.asynchronous(model, scheduler, pipeline=Seen, **ways)
        else:
            with through:
                lesson_07.asynchronous(model, scheduler, pipeline=Seen, **ways)
    assert Seen.made is None or all(stream.query() for stream in Seen.made.streams)


class Fails(lesson_06.IntegerModel):
    """Raises in its step number ``at``: before or after that is queued."""

    at, behind, error, calls = -1, False, Broken, 0

    def __call__(self, *rows):
        self.calls += 1
        if self.calls - 1 == self.at and not self.behind:
            raise self.error
        result = super().__call__(*rows)
        if self.calls - 1 == self.at:
            raise self.error
        return result


class Stops(lesson_07.AsyncBatching):
    """Ctrl-C while a step is being scheduled, before or after its rows are there."""

    at, behind, calls = -1, False, 0

    def step(self, at_ms):
        self.calls += 1
        if self.calls - 1 == self.at and not self.behind:
            raise KeyboardInterrupt
        rows = super().step(at_ms)
        if self.calls - 1 == self.at:
            raise KeyboardInterrupt
        return rows


def broken(at, behind, who, numerics):
    """A loop that was interrupted: device, model and scheduler."""
    model, scheduler = Fails(2, 16, products=1), Stops(2, 4)
    scheduler.add(*some(5))
    who = {"model": model, "scheduler": scheduler}[who]
    who.at, who.behind = at, behind
    fails(model, scheduler, Broken if who is model else KeyboardInterrupt)
    return model, scheduler


BREAKS = pytest.mark.parametrize("at, behind, who, numerics", [
    (at, behind, who, "adversarial" if at % 2 else "exact") for at in range(6) for behind in (False, True)
    for who in ("model", "scheduler")])


@BREAKS
def test_after_an_error_the_model_serves_others(at, behind, who, numerics):
    with simgpu.session(BUSY, numerics=numerics) as gpu:
        model, _ = broken(at, behind, who, numerics)
        serve(model, some(3, 7))
        assert gpu.hazards == []


@BREAKS
def test_after_an_error_the_same_requests_are_served(at, behind, who, numerics):
    """By the same scheduler: who ran starts over, in the same order, with the tokens that came."""
    with simgpu.session(BUSY, numerics=numerics) as gpu:
        model, scheduler = broken(at, behind, who, numerics)
        requests = [*scheduler.running, *scheduler.waiting]
        before = [list(request.tokens) for request in requests]
        scheduler.fit(model)
        assert list(scheduler.waiting) == requests and scheduler.newest == [] and len(scheduler.free) == 2
        serve(model, some(2, 9), scheduler)
        assert [request.tokens for request in requests] == [lesson_06.expected(request) for request in requests]
        assert all(request.tokens[:len(old)] == old for request, old in zip(requests, before, strict=True))
        assert gpu.hazards == []


def test_after_an_error_another_model_serves_the_same_requests():
    """Its cells are empty: nothing of the first model's is needed."""
    with simgpu.session(BUSY) as gpu:
        _, scheduler = broken(3, True, "model", "exact")
        requests = [*scheduler.running, *scheduler.waiting]
        serve(lesson_06.IntegerModel(2, 16, products=1), [], scheduler)
        assert [request.tokens for request in requests] == [lesson_06.expected(request) for request in requests]
        assert gpu.hazards == []


def operations(model):
    """How many a whole run has."""
    scheduler, counted = lesson_07.AsyncBatching(2, 4), Interrupts(1000)
    scheduler.add(*some(2))
    with counted:
        lesson_07.asynchronous(model, scheduler, pipeline=Seen)
    return 1000 - counted.left


@pytest.mark.parametrize("first", range(4))
def test_interrupted_behind_any_operation(first):
    """Also between the parts of a step, and while the slots are made."""
    hit = 0
    with simgpu.session(BUSY) as gpu:
        model = lesson_06.IntegerModel(2, 16, products=1)
        for n in range(first, operations(model), 4):
            scheduler = lesson_07.AsyncBatching(2, 4)
            scheduler.add(*some(2))
            fails(model, scheduler, Broken, Interrupts(n))
            hit += Seen.made is not None
            if n // 4 % 4 == 0:
                serve(model, some(2, n), scheduler)
            assert gpu.hazards == []
        serve(model, some(3, 7))
        assert gpu.hazards == [] and hit > 15


@pytest.mark.parametrize("at", [0, 2])
def test_an_operation_that_fails_on_the_device(at):
    """The host hears of it when it waits."""
    class Outside(lesson_06.IntegerModel):
        calls = 0

        def __call__(self, tokens, slots, positions):
            self.calls += 1
            return super().__call__(tokens, slots + 100 * (self.calls - 1 == at), positions)

    with simgpu.session(BUSY) as gpu:
        scheduler = lesson_07.AsyncBatching(2, 4)
        scheduler.add(*some())
        fails(Outside(2, 16, products=1), scheduler, IndexError)
        serve(lesson_06.IntegerModel(2, 16, products=1), some(), scheduler)
        assert gpu.hazards == []
