"""Lesson 07's loop with a piece left out: a hazard, a wrong token or a wait too many shows each."""

from __future__ import annotations

import random

import pytest
import torch
from test_lesson07 import answer, one_thread  # noqa: F401
from test_lesson07_loops import BUSY, Fails, Seen, some

from benchmarks.async_workloads_made import Workload, draw, lesson_06, lesson_07, run
from utils import simgpu

Streams, AsyncBatching = lesson_07.Streams, lesson_07.AsyncBatching

THREE = Workload(((answer(2, None), 6, 0.0), (answer(1, None), 7, 0.0), (answer(3, None), 5, 0.0)), 2, 4)


# what orders the streams, and the host

class NoInputWait(Streams):
    def compute(self, slot, before, rows):
        slot.copied_in = torch.cuda.Event()
        super().compute(slot, before, rows)


class NoComputeWait(Streams):
    def copy_out(self, slot):
        slot.computed = torch.cuda.Event()
        super().copy_out(slot)


class NoHostWait(Streams):
    def copy_out(self, slot):
        super().copy_out(slot)
        slot.copied_out = torch.cuda.Event()


class RecordsTooEarly(Streams):
    def copy_out(self, slot):
        with torch.cuda.stream(self.copying_out):
            slot.copied_out.record()
        early, slot.copied_out = slot.copied_out, torch.cuda.Event()
        super().copy_out(slot)
        slot.copied_out = early


class InTheCallersStream(Streams):
    """The copy in is queued before the stream is changed."""

    def copy_in(self, slot):
        slot.inputs.copy_(slot.host_in, non_blocking=True)
        with torch.cuda.stream(self.copying_in):
            slot.copied_in.record()


class NotAfterTheCaller(Streams):
    """The streams do not wait for what made the slots."""

    def __init__(self, model, rows):
        super().__init__(model, rows)
        self.slots = [lesson_07.Slot(rows), lesson_07.Slot(rows)]


def shared(*names):
    class Shared(Streams):
        def __init__(self, model, rows):
            super().__init__(model, rows)
            for name in names:
                setattr(self.slots[1], name, getattr(self.slots[0], name))
    return Shared


class Overlapping(Streams):
    """One number of the two slots' tokens is the same memory."""

    def __init__(self, model, rows):
        super().__init__(model, rows)
        both = torch.zeros(2 * rows - 1, dtype=torch.int64, device="cuda")
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream())
        self.slots[0].outputs, self.slots[1].outputs = both[:rows], both[rows - 1:]


class OneSlot(Streams):
    def __init__(self, model, rows):
        super().__init__(model, rows)
        self.slots = [self.slots[0]] * 2


RACES = {"no wait for the rows": NoInputWait, "no wait for the tokens": NoComputeWait,
         "no wait of the host": NoHostWait, "recorded too early": RecordsTooEarly, "one slot": OneSlot,
         "copy in in another stream": InTheCallersStream, "not after the caller": NotAfterTheCaller,
         "overlapping tokens": Overlapping,
         **{f"one {name}": shared(name) for name in ("host_in", "inputs", "outputs", "host_out")}}


@pytest.mark.parametrize("numerics", ["exact", "adversarial"])
@pytest.mark.parametrize("name", RACES)
def test_a_missing_edge_or_buffer_is_a_hazard(name, numerics):
    """Whatever the timing; with the adversarial one tokens are wrong as well."""
    for extra in ({}, {"delays_us": ((300,), (0,), (0,))}, {"mm_us": 900}, {"host_us": 900, "mm_us": 1}):
        outcome = run(Workload(**{**vars(THREE), "numerics": numerics, **extra}), pipeline=RACES[name], waits=False)
        assert outcome.hazards or any("raises" in text for text in outcome.wrong), extra
        if numerics == "adversarial" and name not in ("copy in in another stream", "not after the caller"):
            assert any("got" in text or "raises" in text for text in outcome.wrong), extra


# waits that are right and too many

class WaitsNow(Streams):
    def launch(self, rows):
        slot = super().launch(rows)
        slot.copied_out.synchronize()
        return slot


class WaitsForAll(Streams):
    def launch(self, rows):
        torch.cuda.synchronize()
        return super().launch(rows)


class ReadsTheDevice(Streams):
    def launch(self, rows):
        slot = super().launch(rows)
        with torch.cuda.stream(self.computing):
            slot.outputs[0].item()
        return slot


class Unpinned(Streams):
    """Copies out to pageable memory hold the host until they are done."""

    def __init__(self, model, rows):
        super().__init__(model, rows)
        for slot in self.slots:
            slot.host_out = torch.zeros(rows, dtype=torch.int64)


class NeverCloses(Streams):
    def close(self):
        pass


@pytest.mark.parametrize("pipeline", [
    WaitsNow, WaitsForAll, ReadsTheDevice, Unpinned, NeverCloses, shared("copied_out")])
def test_a_wait_too_many_or_for_the_newest_step_is_seen(pipeline):
    """One event for the copies out of both slots is no race: the host waits for the newest, which is too much."""
    outcome = run(THREE, pipeline=pipeline)
    assert outcome.hazards == 0 and outcome.wrong and all("wait" in text for text in outcome.wrong)


@pytest.mark.parametrize("name", ["copied_in", "computed"])
def test_events_that_two_slots_may_share(name):
    """A stream's wait binds to the record that it finds, and that is its own step's."""
    for n in range(12):
        assert run(draw(random.Random(n)), pipeline=shared(name)).wrong == []


def test_without_close_an_error_leaves_work_in_the_streams():
    class Left(Seen):
        def close(self):
            pass

    with simgpu.session(BUSY):
        model, scheduler = Fails(2, 16, products=1), AsyncBatching(2, 4)
        model.at, model.behind = 2, True
        scheduler.add(*some())
        with pytest.raises(Fails.error):
            lesson_07.asynchronous(model, scheduler, pipeline=Left)
        assert [stream.query() for stream in Left.made.streams] == [True, False, False]


# carry-over

def found(**ways):
    """What is wrong in the first workload, of 80, in which something is."""
    for n in range(80):
        if wrong := run(draw(random.Random(f"faults/{n}")), **ways, waits=False).wrong:
            return wrong
    return []


def carrying(function):
    return type("Carrying", (Streams,), {"carry": staticmethod(function)})


class OwnSlot(Streams):
    """Carries over from the tokens of the step before the last one."""

    def compute(self, slot, before, rows):
        super().compute(slot, slot, rows)


CARRIES = {
    "by the same row": carrying(lambda tokens, sources, before: torch.where(
        sources >= 0, before[:len(tokens)], tokens)),
    "none": carrying(lambda tokens, sources, before: tokens),
    "added to the placeholder": carrying(lambda tokens, sources, before: tokens + torch.where(
        sources >= 0, before[sources.clamp(min=0)], 0)),
    "not from row 0": carrying(lambda tokens, sources, before: torch.where(
        sources > 0, before[sources.clamp(min=0)], tokens)),
    "for all rows": carrying(lambda tokens, sources, before: before[sources.clamp(min=0)]),
    "one row beside": carrying(lambda tokens, sources, before: torch.where(
        sources >= 0, before[(sources - 1).clamp(min=0)], tokens)),
    "from its own slot": OwnSlot,
}


@pytest.mark.parametrize("name", CARRIES)
def test_a_wrong_carry_over_is_a_wrong_token(name):
    assert found(pipeline=CARRIES[name])[0].startswith("request")


def test_adding_twice_is_not_adding_once():
    """With a placeholder of 0 an addition is right, until a step runs twice on the same tokens."""
    def twice(carry):
        class Twice(Streams):
            def compute(self, slot, before, rows):
                with torch.cuda.stream(self.computing):
                    self.computing.wait_event(slot.copied_in)
                    tokens, sources = slot.inputs[0, :rows], slot.inputs[3, :rows]
                    tokens.copy_(carry(tokens, sources, before.outputs))
                super().compute(slot, before, rows)
        return type("Both", (Twice,), {"carry": staticmethod(carry)})

    def add(tokens, sources, before):
        return tokens.clamp(min=0) + torch.where(sources >= 0, before[sources.clamp(min=0)], 0)

    assert run(THREE, pipeline=twice(lesson_07.carry)).wrong == run(THREE, pipeline=carrying(add)).wrong == []
    assert any("got" in text for text in run(THREE, pipeline=twice(add)).wrong)


def test_a_wrong_reference_is_seen(monkeypatch):
    class Echo(lesson_06.IntegerModel):
        def __call__(self, tokens, slots, positions):
            return tokens

    monkeypatch.setattr(lesson_06, "IntegerModel", Echo)
    assert any("synchronous" in text for text in run(THREE).wrong)
