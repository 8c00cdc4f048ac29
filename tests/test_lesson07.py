"""Lesson 07's loop: the same tokens as lesson 06's, whatever comes, leaves or is slow; known faults, case by case."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.async_workloads_made import (
    CANCEL,
    PREEMPT,
    RESUBMIT,
    Disturbance,
    Workload,
    delayed,
    draw,
    lesson_06,
    lesson_07,
    prompt,
    run,
)
from utils import simgpu

Request, EOS = lesson_06.Request, lesson_06.EOS
CARD = simgpu.H200.with_op_time(mm=40_000)
NUMERICS = pytest.mark.parametrize("numerics", ["exact", "adversarial"])
SLOW = {"usual": {}, "adversarial": {"numerics": "adversarial"}, "slow in": {"delays_us": ((900,), (0,), (0,))},
        "slow compute": {"delays_us": ((0,), (900,), (0,))}, "slow out": {"delays_us": ((0,), (0,), (900,))},
        "slow copies": {"copy_us": (700, 700)}, "slow host": {"host_us": 900, "mm_us": 1}}
TIMING = pytest.mark.parametrize("slow", list(SLOW))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Operations this small gain nothing from threads, which a busy machine makes wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def right(workload):
    """What was counted, of a workload in which everything holds."""
    outcome = run(workload)
    assert outcome.wrong == [] and outcome.hazards == 0, workload
    return outcome.counts


def answer(length, eos, seed=0):
    """A prompt whose answer's token number ``eos`` is EOS; None: not before its 25th."""
    for n in range(seed, seed + 400):
        found = prompt(length, n, eos)
        tokens = lesson_06.expected(Request("", list(found), 25))
        if len(tokens) == (25 if eos is None else eos + 1) and (eos is None or tokens[-1] == EOS):
            return found
    raise ValueError(f"no prompt of {length} tokens ends after {eos}")


# random workloads

@settings(max_examples=50)
@given(st.randoms(use_true_random=False))
def test_any_workload_gets_the_tokens_of_the_synchronous_loop(rng):
    right(draw(rng))


def test_workloads_as_in_the_recorded_run():
    """With a seed: they contain everything that may happen."""
    counts = sum((right(draw(random.Random(f"ci/{n}"))) for n in range(100)), Counter())
    wanted = {"workloads", "requests", "tokens", "steps", "ended_by_eos", "ended_by_limit", "cancelled", "sent_again",
              "preempted", "skipped", "prompts_in_chunks", "wasted_rows"}
    assert set(counts) == wanted and min(counts.values()) >= 10


# the cases

@NUMERICS
@pytest.mark.parametrize("delay", [50, 700, 3000])
def test_a1_rows_are_written_while_the_last_ones_copy_in_is_held_up(delay, numerics):
    right(Workload(tuple((answer(n, None), 5, 0.0) for n in (1, 2, 3)), 3, 5, copy_us=(delay, 0), numerics=numerics,
                   delays_us=((delay,), (0,), (0,))))


@pytest.mark.parametrize("rows", [1, 4, 33])
def test_a2_two_slots_share_nothing(rows):
    """No byte, pinned or on the device, and no event; inputs and outputs, twice those of one slot."""
    with simgpu.session(CARD):
        slots = lesson_07.Streams(None, rows).slots
        tensors = [value for slot in slots for value in vars(slot).values() if isinstance(value, torch.Tensor)]
        spans = sorted((one.is_cuda, one.data_ptr(), one.data_ptr() + one.nbytes) for one in tensors)
        events = [value for slot in slots for value in vars(slot).values() if isinstance(value, torch.cuda.Event)]
        assert len(spans) == 8 and len({id(event) for event in events}) == 6
        assert all(one[0] != other[0] or one[2] <= other[1] for one, other in pairwise(spans))
        assert all(one.is_cuda or one.is_pinned() for one in tensors) and len(slots) == 2 and slots[0] is not slots[1]
        assert sum(one.nbytes for one in tensors) == 2 * (rows * 8 * 5) * 2


@TIMING
def test_a3_poison_never_becomes_a_token(slow):
    """What nothing was written to is poison, on the device and in pinned memory: nobody gets it as a token."""
    requests = [Request("", list(answer(n, None)), 6) for n in (1, 4)]
    workload = Workload((), 2, 6, **SLOW[slow])
    with simgpu.session(workload.profile(), numerics=workload.numerics) as gpu:
        class Poisoned(lesson_07.Streams):
            def __init__(self, model, rows):
                super().__init__(model, rows)
                for slot in self.slots:
                    slot.inputs, slot.outputs = torch.empty_like(slot.inputs), torch.empty_like(slot.outputs)
                    slot.host_out.fill_(-99)

        scheduler = lesson_07.AsyncBatching(2, 6)
        scheduler.add(*requests)
        lesson_07.asynchronous(lesson_06.IntegerModel(2, 16, products=1), scheduler,
                               workload.host_us, delayed(Poisoned, workload.delays_us))
        assert gpu.hazards == []
    assert [request.tokens for request in requests] == [lesson_06.expected(request) for request in requests]


@TIMING
@pytest.mark.parametrize("eos", range(5))
def test_a4_an_eos_costs_one_row(eos, slow):
    """At every step, alone and beside others; the first token may be it."""
    end, other = answer(3, eos), answer(2, None)
    for requests in (((end, 20, 0.0),), ((other, 9, 0.0), (end, 20, 0.0)), ((end, 20, 0.0),) * 3):
        counts = right(Workload(requests, 2, 4, **SLOW[slow]))
        assert counts["wasted_rows"] == counts["ended_by_eos"] == len(requests) - (other in requests[0])


@TIMING
@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a5_a_limit_costs_none(limit, slow):
    requests = tuple((answer(1 + n, None), max(1, limit - n % 2), 0.0) for n in range(5))
    counts = right(Workload(requests, 2, 5, **SLOW[slow]))
    assert counts["wasted_rows"] == 0 and counts["ended_by_limit"] == 5


@NUMERICS
@pytest.mark.parametrize("gap", [1, 2, 3])
@pytest.mark.parametrize("at", range(6))
def test_a6_left_out_of_steps_and_back(at, gap, numerics):
    """Of one, two, three steps in a row; alone, so that steps have no rows at all, and beside others."""
    for count in (1, 3):
        skips = frozenset((at + n, 0) for n in range(gap))
        counts = right(Workload(tuple((answer(1 + n, None), 7, 0.0) for n in range(count)), 3, 4, skips=skips,
                                numerics=numerics))
        assert counts["wasted_rows"] == 0 and counts["skipped"] >= 1


def test_a6_after_a_step_without_it_the_token_comes_from_the_host():
    scheduler, requests = lesson_07.AsyncBatching(2, 4), [Request("a", [3], 9), Request("b", [4], 9)]
    scheduler.add(*requests)
    first = scheduler.step(0)
    away, scheduler.running = scheduler.running[:1], scheduler.running[1:]      # a is left out of the next step
    second = scheduler.step(0)
    scheduler.running = away + scheduler.running
    lesson_07.take(scheduler, first, [11, 21], 0)
    third = scheduler.step(0)
    assert [(row.request.name, row.token, row.source) for row in second] == [("b", -1, 1)]
    assert [(row.request.name, row.token, row.source) for row in third] == [("a", 11, -1), ("b", -1, 0)]


@TIMING
def test_a7_join_and_leave_in_the_same_step(slow):
    """Rows move: each step somebody leaves, by EOS or limit, and somebody else comes."""
    kinds = [(answer(2, 1), 9), (answer(2, None), 2), (answer(1, None), 6), (answer(3, 2), 9), (answer(1, None), 1)]
    requests = tuple((*kinds[n % 5], 0.05 * n) for n in range(10))
    counts = right(Workload(requests, 3, 5, **SLOW[slow]))
    assert counts["wasted_rows"] == counts["ended_by_eos"] == 4


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_a8_carry_over_may_run_again(rows):
    """For any sources and tokens, also 0, -1 and EOS as tokens: the first result, again and again."""
    rng = random.Random(rows)
    with simgpu.session(CARD):
        for _ in range(20):
            before = torch.tensor([rng.randrange(-1, 50) for _ in range(16)]).cuda()
            sources = [rng.choice((-1, rng.randrange(16))) for _ in range(rows)]
            tokens = [-1 if source >= 0 else rng.randrange(50) for source in sources]
            once = lesson_07.carry(torch.tensor(tokens).cuda(), torch.tensor(sources).cuda(), before)
            wanted = [before.tolist()[source] if source >= 0 else token
                      for token, source in zip(tokens, sources, strict=True)]
            twice = lesson_07.carry(once, torch.tensor(sources).cuda(), before)
            assert once.tolist() == twice.tolist() == wanted


def test_a8_a_whole_step_may_run_again():
    """As the warm-up of a graph does: its kernels run twice on the same slot."""
    class Twice(lesson_07.Streams):
        def compute(self, slot, before, rows):
            super().compute(slot, before, rows)
            super().compute(slot, before, rows)

    workload = Workload(tuple((answer(1 + n, None), 6, 0.0) for n in range(4)), 2, 4)
    assert run(workload, pipeline=Twice).wrong == []


@TIMING
@pytest.mark.parametrize("slots", [1, 2])
def test_a9_a_freed_slot_is_given_away_at_once(slots, slow):
    """The row that is wasted writes into it, and the new request's prompt goes over that."""
    requests = tuple((answer(2 + n % 3, n % 3), 9, 0.0) for n in range(5))
    counts = right(Workload(requests, slots, slots + 2, **SLOW[slow]))
    assert counts["ended_by_eos"] == counts["wasted_rows"] == 5


@NUMERICS
@pytest.mark.parametrize("under_way", [False, True])
@pytest.mark.parametrize("how", [CANCEL, RESUBMIT])
def test_a10_cancelled_and_sent_again_at_every_step(how, under_way, numerics):
    """Same name, same prompt, the same slot again: nothing that was meant for the old one."""
    for at, slots in product(range(8), (1, 2) if numerics == "exact" else (1,)):
        requests = ((answer(2, None), 6, 0.0), (answer(3, 3), 9, 0.0))
        right(Workload(requests, slots, 4, (Disturbance(at, at % 2, how, under_way),), numerics=numerics))


@NUMERICS
@pytest.mark.parametrize("under_way", [False, True])
@pytest.mark.parametrize("times", [1, 2])
def test_a11_preempted_at_every_step(times, under_way, numerics):
    """Once, and again right after; while its prompt, its EOS or its last token is under way."""
    for at, who in product(range(10), (0, 1)):
        requests = ((answer(5, 2), 9, 0.0), (answer(2, None), 4, 0.0), (answer(1, None), 3, 0.0))
        each = tuple(Disturbance(at + n, who, PREEMPT, under_way) for n in range(times))
        right(Workload(requests, 2, 3, each, numerics=numerics))


def test_a11_the_token_that_was_under_way_is_computed_again():
    scheduler, request = lesson_07.AsyncBatching(1, 3), Request("a", [3, 4], 5)
    scheduler.add(request)
    first = scheduler.step(0)
    scheduler.preempt(request)
    scheduler.preempt(request)                                      # it waits: nothing happens
    again = scheduler.step(0)
    lesson_07.take(scheduler, first, [0, 11], 0)                    # it has the same slot again, and gets nothing
    assert request.tokens == [] and scheduler.wasted == 1 and request.slot == first[0].slot
    assert [(row.token, row.position, row.last) for row in again] == [(3, 0, False), (4, 1, True)]
    lesson_07.take(scheduler, again, [0, 11], 0)
    assert request.tokens == [11]


@TIMING
@pytest.mark.parametrize("length, budget", [(9, 2), (9, 4), (8, 4), (13, 3), (2, 2)])
def test_a12_a_chunk_that_is_not_the_last_gives_nothing(length, budget, slow):
    """Long prompts beside decodes, alone, and two of them at once."""
    for requests in (((answer(1, None), 9, 0.0), (answer(length, None), 3, 0.0)), ((answer(length, None), 2, 0.0),),
                     ((answer(length, None), 3, 0.0), (answer(length, 1, 9), 3, 0.0))):
        counts = right(Workload(requests, 2, budget, **SLOW[slow]))
        assert counts["wasted_rows"] == counts["ended_by_eos"]


@NUMERICS
@pytest.mark.parametrize("what", ["rows", "nothing but a zero"])
def test_a16_a_slot_is_filled_before_its_last_step_was_waited_for(what, numerics):
    """Flagged, also when what is written is never used."""
    class Early(lesson_07.Streams):
        def launch(self, rows):
            slot = super().launch(rows)
            other = self.slots[self.steps % 2]                      # its step is under way
            other.fill(rows) if what == "rows" else other.host_in[0, :1].zero_()
            return slot

    requests = ((answer(1, None), 6, 0.0), (answer(2, None), 6, 0.0))
    outcome = run(Workload(requests, 2, 4, numerics=numerics), pipeline=Early)
    assert outcome.hazards and "host" in outcome.wrong[0]


@TIMING
@pytest.mark.parametrize("eos", [0, 1, 3])
def test_a17_eos_with_the_last_token_of_the_limit(eos, slow):
    """No row is wasted: the limit was known."""
    for count in (1, 3):
        counts = right(Workload(((answer(2, eos), eos + 1, 0.0),) * count, 2, 4, **SLOW[slow]))
        assert counts["wasted_rows"] == 0 and counts["tokens"] == count * (eos + 1)


@TIMING
@pytest.mark.parametrize("eos", [None, 0, 2])
def test_a17_idle_and_then_a_new_arrival(eos, slow):
    requests = tuple((answer(2, eos, n), 4, 30.0 * n) for n in range(3))
    counts = right(Workload(requests, 2, 4, **SLOW[slow]))
    assert counts["wasted_rows"] == (0 if eos is None else 3)
