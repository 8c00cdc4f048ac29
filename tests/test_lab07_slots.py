"""Lab 07, slots: shared bytes are refused with the race that they make, pageable memory with the time it costs."""

from collections import namedtuple
from functools import lru_cache
from types import SimpleNamespace

import pytest
import torch
from lab07_answers import passes, refused

from utils.lessons import import_lesson

LESSON = import_lesson("07_async_batching")
PUZZLE = "two_slots"
INT = torch.int64


def pinned(*shape):
    return torch.zeros(*shape, dtype=INT).pin_memory()


def on_gpu(*shape):
    return torch.zeros(*shape, dtype=INT, device="cuda")


def slot(rows, **other):
    parts = dict(host_in=lambda: pinned(4, rows), host_out=lambda: pinned(rows), inputs=lambda: on_gpu(4, rows),
                 outputs=lambda: on_gpu(rows))
    return SimpleNamespace(**{name: other[name] if name in other else make() for name, make in parts.items()})


def sharing(part, view=lambda tensor: tensor):
    """Both slots have the same of these."""
    def answer(rows):
        one = slot(rows)
        return [one, slot(rows, **{part: view(getattr(one, part))})]
    return answer


def twice(rows):
    return [slot(rows)] * 2


def overlapping(rows):
    whole = on_gpu(2 * rows - 1)                        # the last row of one is the first of the other
    return [slot(rows, outputs=whole[:rows]), slot(rows, outputs=whole[rows - 1:])]


def crossed(rows):
    one = slot(rows)
    return [one, slot(rows, outputs=one.inputs[0])]


def inputs_hold_outputs(rows):
    def one():
        inputs = on_gpu(4, rows)
        return slot(rows, inputs=inputs, outputs=inputs[3])
    return [one(), one()]


def one_pinned_for_all(rows):
    both = pinned(5, rows)
    return [slot(rows, host_in=both[:4], host_out=both[4]) for _ in range(2)]


def pageable(*parts):
    def answer(rows):
        fresh = {"host_in": lambda: torch.zeros(4, rows, dtype=INT), "host_out": lambda: torch.zeros(rows, dtype=INT)}
        return [slot(rows, **{part: fresh[part]() for part in parts}) for _ in range(2)]
    return answer


def keeps_a_third(rows):
    KEPT.append(slot(rows))
    return [slot(rows), slot(rows)]


KEPT = []


@lru_cache
def cached(rows):
    return [slot(rows), slot(rows)]


def transposed(rows):
    return [slot(rows, host_in=pinned(rows, 4).t()) for _ in range(2)]


def short(rows):
    return [slot(rows - 1) for _ in range(2)]


def three_in_one(rows):
    whole = on_gpu(3, 5, rows)
    return [slot(rows, inputs=part[:4], outputs=part[4]) for part in whole[:2]]


WRONG = [
    (twice, "slot 0 host_in and slot 1 host_in"),
    (sharing("outputs"), "slot 0 outputs and slot 1 outputs"),
    (sharing("outputs"), "WAR"),
    (sharing("inputs"), "slot 0 inputs and slot 1 inputs"),
    (sharing("host_in"), "slot 0 host_in and slot 1 host_in"),
    (sharing("host_out"), "slot 0 host_out and slot 1 host_out"),
    (sharing("host_out"), "have wrong tokens"),
    (sharing("inputs", lambda tensor: tensor.view(-1).view(4, -1)), "slot 0 inputs and slot 1 inputs"),
    (overlapping, "slot 0 outputs and slot 1 outputs (8 bytes)"),
    (crossed, "slot 0 inputs and slot 1 outputs"),
    (inputs_hold_outputs, "slot 0 inputs and slot 0 outputs"),
    (one_pinned_for_all, "slot 0 host_in and slot 1 host_in"),
    (pageable("host_in", "host_out"), "host_in and host_out are pageable memory"),
    (pageable("host_in"), "host_in is pageable memory"),
    (pageable("host_out"), "host_out is pageable memory"),
    (cached, "a second loop would write into the first one's"),
    (lambda rows: [{"host_in": pinned(4, rows)}] * 2, "host_in of slot 0 is missing"),
    (transposed, "not asynchronous"),
    (keeps_a_third, "3 sets of"),
    (three_in_one, "3 sets of device memory"),
    (lambda rows: [slot(rows) for _ in range(3)], "3 slots take memory for 3 sets"),
    (lambda rows: [slot(rows)], "return two"),
    (short, "A step may have"),
    (lambda rows: [slot(rows, inputs=on_gpu(3, rows)) for _ in range(2)], "int64 tensor of shape (4, 16)"),
    (lambda rows: [slot(rows, outputs=torch.zeros(rows, device="cuda")) for _ in range(2)], "float32 tensor"),
    (lambda rows: [slot(rows, outputs=pinned(rows)) for _ in range(2)], "on the GPU"),
    (lambda rows: [SimpleNamespace(host_in=1)] * 2, "host_in of slot 0 is 1"),
    (lambda rows: slot(rows), "Return a list of two slots."),
    (lambda rows: None, "returned None"),
    (lambda rows: rows.slots, "it raised AttributeError"),
]


@pytest.mark.parametrize("at", range(len(WRONG)))
def test_wrong_slots_are_refused(at):
    refused(*WRONG[at], PUZZLE)


def from_one_piece(rows):
    """All that is on the device in one tensor, all that is pinned in another."""
    device, host = on_gpu(2, 5, rows), pinned(2, 5, rows)
    return tuple(SimpleNamespace(host_in=host[n, :4], host_out=host[n, 4], inputs=device[n, :4], outputs=device[n, 4])
                 for n in range(2))


def unwritten(rows):
    make = namedtuple("Buffers", "host_in host_out inputs outputs")
    return [make(torch.empty(4, rows, dtype=INT, pin_memory=True), torch.empty(rows, dtype=INT, pin_memory=True),
                 torch.empty(4, rows, dtype=INT, device="cuda"), torch.empty(rows, dtype=INT, device="cuda"))
            for _ in range(2)]


def host_shares_within(rows):
    """In one slot, the tokens lie where the rows lay: nothing races, since the host waits between the two."""
    def one():
        host_in = pinned(4, rows)
        return slot(rows, host_in=host_in, host_out=host_in[0])
    return [one(), one()]


@pytest.mark.parametrize("answer", [from_one_piece, unwritten, lambda rows: [slot(rows), slot(rows)],
                                    host_shares_within, lambda rows: [LESSON.Slot(rows) for _ in range(2)]])
def test_right_slots_pass(answer):
    passes(answer, PUZZLE)
