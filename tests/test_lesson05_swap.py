"""Lesson 05's models that take turns in slots: bit-equal to resident ones, race-free, and nothing copied twice."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from interrupts import Broken
from simgpu_programs.onload import RATIOS, profile
from small_layers import MAKERS, W, batch
from small_models import Resident, Timed, build, copies, linears, size_of
from torch import nn

from utils import simgpu
from utils.lessons import import_lesson

lesson = import_lesson("05_offload_and_swap")


@pytest.fixture(autouse=True)
def quiet():
    """One thread: operations this small gain nothing from more; and no layer fails."""
    threads, Timed.left = torch.get_num_threads(), -1
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Counting(lesson.Swap):
    """Counts what it copies, and finds a layer that is copied although it is there."""

    def load(self, key, slot):
        assert key not in self.holds
        self.pieces = getattr(self, "pieces", 0) + len(self.blocks[key])
        super().load(key, slot)


# any models, budgets, schedules

KINDS = st.lists(st.sampled_from((*(set(MAKERS) - {"bn"}), "tied", "again")), min_size=1, max_size=4)
CALLS = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(0, 2), st.booleans(),
                           st.booleans(), st.none() | st.integers(0, 9)), min_size=1, max_size=3)


def play(swap, resident, calls, inputs, ordered):
    """Pairs of results of each call: (schedule, stream, ahead, wait, the layer run that fails)."""
    streams, found = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()], []
    (x, *times), before = inputs, streams[0]
    torch.cuda.synchronize()
    for schedule, stream, ahead, wait, fails in calls:
        if ordered:
            streams[stream].wait_stream(before)
        before = streams[stream]
        with torch.cuda.stream(before), torch.no_grad():
            if fails is not None:
                Timed.left = fails
                with suppress(Broken):
                    lesson.denoise(swap, x, times[:len(schedule)], schedule, ahead, wait)
                Timed.left = -1
            found.append([schedule, lesson.denoise(swap, x, times[:len(schedule)], schedule, ahead, wait)])
    torch.cuda.synchronize()
    with torch.no_grad():
        return [(y, lesson.denoise(resident, x, times[:len(schedule)], schedule)) for schedule, y in found]


def check(kinds, extra, calls, ratio, numerics, ordered):
    kinds = [[*each] for each in kinds]
    kinds[0][0] = "linear"                                      # models without any weights are a case of their own
    with simgpu.session(profile(ratio), numerics=numerics) as gpu:
        models = build(kinds)
        resident, inputs = Resident(models), [batch(seed=seed) for seed in range(5)]
        size, most, every = size_of(models), max(map(len, models)), sum(map(len, models))
        swap = Counting(models, size * min(most + extra, every))
        before = copies(gpu)
        found = play(swap, resident, calls, inputs, ordered)
        assert gpu.hazards == [] and copies(gpu, "d2h") == 0
        assert len(swap.memory) == min(most + extra, every) and copies(gpu) - before == swap.pieces
        assert all(torch.equal(y, wanted) for y, wanted in found)


@settings(max_examples=40)
@given(st.lists(KINDS, min_size=3, max_size=3), st.integers(0, 8), CALLS, st.sampled_from(RATIOS),
       st.sampled_from(("exact", "adversarial")), st.booleans())
@example([["linear", "tied", "none"], ["tied", "large"], ["within", "again", "again"]], 0,
         [([0, 0, 1, 2], 0, True, False, 4), ([2, 1, 0], 1, True, True, None), ([0, 2, 0], 2, False, False, 6)], 1,
         "adversarial", True)
@example([["linear"], ["transformer"], ["mixed"]], 1, [([0, 1, 2, 0], n, True, False, n) for n in range(3)], 10,
         "exact", False)
@example([["linear", "small"], ["none", "none", "none"], ["again"]], 2,
         [([1, 0, 1], 0, True, False, 1), ([2, 1], 1, True, False, None)], 0.1, "adversarial", False)
def test_any_models_are_bit_equal_to_resident_ones(models, extra, calls, ratio, numerics, ordered):
    """(ordered: whether each call waits for the stream of the call before.)"""
    check(models, extra, calls, ratio, numerics, ordered)


@pytest.mark.parametrize("numerics", ["exact", "adversarial"])
def test_calls_on_streams_that_do_not_wait_for_each_other(numerics):
    """The first of them reads model 0 for long, the second for a short time, and the third needs its slots."""
    with simgpu.session(profile(1), numerics=numerics) as gpu:
        models = linears(3, 3)
        resident, swap = Resident(models), Counting(models, 3 * size_of(models))
        large, small, time = torch.randn(512, W).cuda(), torch.randn(1, W).cuda(), torch.zeros(W).cuda()
        sides = [torch.cuda.Stream() for _ in range(2)]
        torch.cuda.synchronize()
        with torch.no_grad():
            with torch.cuda.stream(sides[0]):
                first = lesson.denoise(swap, large, [time] * 3, (0, 0, 0))
            with torch.cuda.stream(sides[1]):
                second = lesson.denoise(swap, small, [time] * 2, (0, 1))
            torch.cuda.synchronize()
            assert gpu.hazards == []
            assert torch.equal(first, lesson.denoise(resident, large, [time] * 3, (0, 0, 0)))
            assert torch.equal(second, lesson.denoise(resident, small, [time] * 2, (0, 1)))


# copies: what must be, and nothing twice

@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("counts", [(3, 3), (2, 5), (5, 1)])
@pytest.mark.parametrize("extra", [0, 1, 2, 9])
def test_a_switch_copies_what_has_found_no_place(gpu, counts, extra, ahead, wait):
    models, (x, time) = linears(*counts), (batch(), batch(1))
    slots, swap = min(max(counts) + extra, sum(counts)), None
    swap = lesson.Swap(models, slots * size_of(models))
    before, schedule, expected, seen = copies(gpu), (0, 0, 1, 1, 0, 1, 0, 0), counts[0], {0}
    lesson.denoise(swap, x, [time] * 8, schedule, ahead, wait)
    for m, after in pairwise(schedule):
        if m != after:                                          # what m left alone has stayed
            expected += counts[after] - (min(counts[after], slots - counts[m]) if after in seen else 0)
            seen.add(after)
    assert copies(gpu) - before == expected and copies(gpu, "d2h") == 0 and gpu.hazards == []
    before = copies(gpu)
    lesson.denoise(swap, x, [time] * 3, (0, 0, 0), ahead, wait)
    assert copies(gpu) == before


# time

class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(64, 64))

    def forward(self, x, time):
        return x @ self.weight


def exposed(ratio, extra, schedule, wait, ahead=True, layers=8):
    """By how much a schedule, its first model loaded, takes longer than with both resident, and durations; in ns."""
    free_host = replace(profile(ratio), launch_ns=0, event_ns=0, sync_ns=0, memory_bytes=10**9)
    with simgpu.session(free_host, numerics="shapes") as gpu:
        x, spent = torch.empty(64, 64, device="cuda"), []
        for count, before in ((layers + extra, (0,)), (2 * layers, (1, 0))):
            models = [[Product() for _ in range(layers)] for _ in range(2)]
            swap = lesson.Swap(models, count * size_of(models))
            lesson.denoise(swap, x, [None] * len(before), before)
            torch.cuda.synchronize()
            start = simgpu.clock()
            lesson.denoise(swap, x, [None] * len(schedule), schedule, ahead, wait)
            torch.cuda.synchronize()
            spent.append(simgpu.clock() - start)
        spans = gpu.trace().columns
        ns = {name: us * 1000 for name, us in zip(spans["name"], spans["duration_us"], strict=True)}
        assert gpu.hazards == []
        return (spent[0] - spent[1]) * 1000, ns["copy_"], ns["mm"], ns["div"] + ns["sub"]


def planned(copy_ns, product_ns, tail_ns, extra, steps, layers=8):
    """The same from the plan; a step ends with its tail, and the last of model 0 begins at 0."""
    begin = -(steps - 1) * (layers * product_ns + tail_ns)
    free = [begin] * extra + [product_ns * (i + 1) for i in range(layers)]          # when the n-th copy has a place
    done, now = begin, layers * product_ns + tail_ns
    for n in range(layers):
        done = max(done, free[n]) + copy_ns
        now = max(now, done) + product_ns
    return now - 2 * layers * product_ns - tail_ns


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("extra", [0, 1, 3, 8])
@pytest.mark.parametrize("ratio", RATIOS)
def test_exposed_time_of_a_switch(ratio, extra, steps, wait):
    found, c, *others = exposed(ratio, extra, (0,) * steps + (1, 1), wait)
    assert found == pytest.approx(planned(c, *others, extra, steps), abs=10)
    if ratio <= 2:                  # a layer and eight copies, of which one may show, take no longer than 15 layers
        assert found <= c


@pytest.mark.parametrize("ratio", RATIOS)
def test_as_needed_hides_as_much_as_ahead_only_where_the_host_does_not_wait(ratio):
    both = (True, False)
    found = {(ahead, wait): exposed(ratio, 0, (0, 0, 1, 1), wait, ahead) for ahead in both for wait in both}
    (ahead, c, k, _), as_needed = found[True, True], found[False, True][0]
    assert found[True, False][0] == found[False, False][0] == pytest.approx(ahead, abs=1)
    assert as_needed == pytest.approx(c + 7 * max(0, c - k), abs=10)
    assert as_needed > ahead + min(c, k) / 2
