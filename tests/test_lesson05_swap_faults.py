"""Lesson 05's models that take turns: what is refused, memory, deletion, layers that change themselves, waits."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
from interrupts import Broken, Interrupts
from simgpu_programs.onload import profile
from small_layers import W, batch
from small_models import Resident, Timed, build, linears, size_of
from torch import nn

from utils import simgpu
from utils.lessons import import_lesson

lesson = import_lesson("05_offload_and_swap")
SCHEDULE = (0, 0, 1, 1, 0)


def times(count):
    return [batch(1, seed=seed) for seed in range(count)]


def state(models):
    """Where the tensors of all layers lie, whether pinned, and copies of them."""
    tensors = [tensor for model in models for layer in model for tensor in layer.parameters()]
    return [(t.data_ptr(), t.is_pinned(), type(t)) for t in tensors], [t.detach().clone() for t in tensors]


def unchanged(models, before):
    return state(models)[0] == before[0] and all(map(torch.equal, state(models)[1], before[1]))


def agree(swap, resident, schedule=SCHEDULE):
    x = batch()
    with torch.no_grad():
        found = [lesson.denoise(each, x, times(len(schedule)), schedule) for each in (swap, resident)]
    torch.cuda.synchronize()
    return simgpu.active().hazards == [] and torch.equal(*found)


# what is refused, or does not fit, changes nothing

@pytest.mark.parametrize("working", [0, 5000])
@pytest.mark.parametrize("counts", [(3, 3), (1, 4)])
def test_a_budget_that_is_too_small_is_refused_before_anything_is_packed(gpu, counts, working):
    models = linears(*counts)
    resident, before, used = Resident(models), state(models), torch.cuda.memory_allocated()
    budget = max(counts) * size_of(models) + working
    with pytest.raises(ValueError, match=rf"a budget of .* of it for other things: {max(counts)} layers of"):
        lesson.Swap(models, budget - 1, working)
    assert unchanged(models, before) and torch.cuda.memory_allocated() == used
    swap = lesson.Swap(models, budget, working)
    assert len(swap.memory) == max(counts) and agree(swap, resident)


def test_working_memory_that_is_more_than_the_budget(gpu):
    with pytest.raises(ValueError, match=r"a budget of 0.0 MiB, 953.7 of it for other things: 1 layers"):
        lesson.Swap(linears(1, 1), 1000, 1e9)


@pytest.mark.parametrize("slots", [3, 6])
def test_a_card_that_is_too_small_for_the_slots(slots):
    models = linears(3, 3)
    before, size = state(models), size_of(models)
    with simgpu.session(replace(profile(1), memory_bytes=int(size * (slots - 0.5)))) as gpu:
        with pytest.raises(torch.OutOfMemoryError):
            lesson.Swap(models, slots * size)
        gc.collect()
        assert unchanged(models, before) and torch.cuda.memory_allocated() == 0
    with simgpu.session(profile(1)) as gpu:
        assert agree(lesson.Swap(models, 4 * size), Resident(models)) and gpu.hazards == []


def test_layers_on_the_device_are_refused(gpu):
    models = linears(2, 2)
    models[1][1].cuda()
    used = torch.cuda.memory_allocated()
    with pytest.raises(ValueError, match=r"layer.weight of layer 3 is on cuda"):
        lesson.Swap(models, 10**6)
    assert torch.cuda.memory_allocated() == used


@pytest.mark.parametrize("count", [2, 4])
def test_times_that_do_not_fit_the_schedule_are_refused_before_the_first_step(gpu, count):
    swap, x, given = lesson.Swap(linears(2, 2), 10**6), batch(), times(count)
    before = len(gpu.trace().columns["name"])
    with pytest.raises(ValueError, match=f"{count} times for 3 steps"):
        lesson.denoise(swap, x, given, (0, 1, 0))
    assert len(gpu.trace().columns["name"]) == before


@pytest.mark.parametrize("m", [2, -1])
def test_a_model_that_is_not_there(gpu, m):
    swap = lesson.Swap(linears(2, 2), 10**6)
    with pytest.raises(ValueError, match=f"there is no model {m}"):
        swap.step(batch(), times(1), m)


def test_models_without_weights(gpu):
    models = build([["none"], ["none", "none"]])
    assert agree(lesson.Swap(models, 10**6), Resident(models))


def test_usable_after_an_error_anywhere_in_a_schedule(gpu):
    models, x, given, schedule = build([["linear", "mixed"], ["tied", "within"]]), batch(), times(3), (0, 1, 0)
    swap, wanted = lesson.Swap(models, 3 * size_of(models)), lesson.denoise(Resident(models), x, given, schedule)
    for n in range(200):
        try:
            with Interrupts(n):
                lesson.denoise(swap, x, given, schedule)
            break
        except Broken:
            assert torch.equal(lesson.denoise(swap, x, given, schedule), wanted) and gpu.hazards == []
    assert 30 < n < 199


# memory

def peak(model, schedule, x, given):
    torch.cuda.reset_peak_memory_stats()
    y = lesson.denoise(model, x, given, schedule)
    return torch.cuda.max_memory_allocated(), y


@pytest.mark.parametrize("extra", [0, 1, 4])
def test_memory_is_the_budget_and_what_a_resident_model_works_with(gpu, extra):
    """Weights of 32 KiB, a multiple of what the allocator rounds to."""
    sizes, x, given = ((W, 512), (512, W)), batch(), [0.0] * 5
    models = [[Timed(nn.Linear(*size, bias=False)) for size in sizes] for _ in range(2)]
    resident = Resident(models)
    peak(resident, SCHEDULE, x, given)                                  # the library's workspace
    before = torch.cuda.memory_allocated()
    working = peak(resident, SCHEDULE, x, given)[0] - before
    budget = (2 + min(extra, 2)) * size_of(models) + working
    swap = lesson.Swap(models, budget, working)
    assert torch.cuda.memory_allocated() - before == budget - working
    for _ in range(3):
        highest, y = peak(swap, SCHEDULE, x, given)
        assert highest - before == budget
        del y
        assert torch.cuda.memory_allocated() - before == budget - working


def test_small_layers_keep_the_budget(gpu):
    models = [[nn.Linear(8, 8, bias=False) for _ in range(4)]]
    swap = lesson.Swap(models, 4 * size_of(models))
    assert len(swap.memory) == 4 and torch.cuda.memory_allocated() <= 4 * size_of(models)


def test_slots_whose_memory_is_still_in_use_on_the_stream_that_made_them(gpu):
    models, x, given = linears(2, 2), batch(), times(5)
    resident, ones = Resident(models), torch.ones(size_of(models), dtype=torch.uint8).cuda()
    torch.cuda._sleep(10_000_000)
    old = ones.clone()
    z = old + 1
    address = old.data_ptr()
    del old
    swap = lesson.Swap(models, 3 * size_of(models))
    assert swap.memory[0].data_ptr() == address
    y = lesson.denoise(swap, x, given, SCHEDULE)
    assert bool((z == 2).all()) and torch.equal(y, lesson.denoise(resident, x, given, SCHEDULE)) and gpu.hazards == []


def test_slots_are_given_back_without_the_garbage_collector(gpu):
    models, used = linears(2, 2), torch.cuda.memory_allocated()
    swap = lesson.Swap(models, 10**5)
    assert len(swap.memory) == 4                                        # not more slots than layers
    assert agree(swap, Resident(models)) and torch.cuda.memory_allocated() - used >= 4 * size_of(models)
    workspace = torch.cuda.memory_allocated() - used - sum(-(-len(memory) // 512) * 512 for memory in swap.memory)
    gc.disable()
    try:
        del swap
        assert torch.cuda.memory_allocated() - used == workspace
    finally:
        gc.enable()


@pytest.mark.parametrize("done", ["none", "layers", "copies"])
@pytest.mark.parametrize("ratio", [0.1, 10])
def test_given_up_while_copies_and_layers_are_under_way(ratio, done):
    """Their memory is used again, where the layers or the copies are done already on the same addresses."""
    with simgpu.session(profile(ratio)) as gpu:
        models, side = linears(3, 3), torch.cuda.Stream()
        resident, (x, given) = Resident(models), (batch(), times(5))
        swap = lesson.Swap(models, 4 * size_of(models))
        sizes, copying = [len(memory) for memory in swap.memory], swap.copying
        hosts = [block.bytes for blocks in swap.blocks.values() for block in blocks]
        wanted = lesson.denoise(resident, x, given, SCHEDULE)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            y = lesson.denoise(swap, x, given, SCHEDULE)
            if done == "layers":
                swap.load((1, 2), 3)                                    # a copy that no layer has waited for
        {"none": lambda: None, "layers": side.synchronize, "copies": copying.synchronize}[done]()
        del swap, models
        others = [torch.full((size,), 7, dtype=torch.uint8, device="cuda") for size in sizes]
        pinned = [torch.full((size,), 7, dtype=torch.uint8, pin_memory=True) for size in hosts]
        torch.cuda.synchronize()
        assert gpu.hazards == [] and torch.equal(y, wanted)
        assert all(bool((other == 7).all()) for other in (*others, *pinned))


# layers that change their own tensors

class Counts(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how
        self.register_buffer("count", torch.zeros(W))

    def forward(self, x, time):
        if self.how == "in place":
            self.count.add_(1)
        elif self.how == "anew":
            self.count = self.count + 1
        return x + self.count


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("how", ["in place", "anew"])
def test_layers_that_change_their_own_tensors_are_refused(gpu, how, slots):
    models, x = [[Counts(how), Timed(nn.Linear(W, W))], [Timed(nn.Linear(W, W))] * 2], batch()
    swap, resident, counts = lesson.Swap(models, slots * size_of(models)), Resident(models), models[0][0].count
    for _ in range(2):
        with pytest.raises(RuntimeError, match="a Counts changed its own tensors"):
            swap.step(x, times(1), 0)
        assert models[0][0].count is counts and counts.device.type == "cpu"
        assert torch.equal(swap.step(x, times(1), 1), resident.step(x, times(1), 1)) and gpu.hazards == []
    torch.cuda.synchronize()
    assert not bool(counts.any())
    models[0][0].how = "not at all"                                     # the next run finds what the host has
    assert agree(swap, Resident(models), (0, 1, 0))


# each wait is needed

@pytest.mark.parametrize("ratio", [0.1, 1, 10])
@pytest.mark.parametrize(("wait", "kind"), [("loaded", "RAW"), ("read", "WAR")])
def test_a_wait_that_is_left_out_is_a_hazard(monkeypatch, ratio, wait, kind):
    with simgpu.session(profile(ratio)) as gpu:
        models, x, given = linears(3, 3), batch(), times(5)
        swap = lesson.Swap(models, 4 * size_of(models))
        events, waits = getattr(swap, wait), torch.cuda.Stream.wait_event
        torch.cuda.synchronize()
        monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda self, event: (
            None if any(event is each for each in events) else waits(self, event)))
        lesson.denoise(swap, x, given, SCHEDULE)
        monkeypatch.undo()
        assert kind in {hazard.kind for hazard in gpu.hazards}


# the time of transfers

@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.908, 1.0])
@pytest.mark.parametrize("mib", [(8, 8), (24, 8), (8, 40), (16, 1), (0, 16), (16, 0)])
def test_transfer_ms_is_the_time_of_the_simulated_link(mib, share, engines):
    card = replace(simgpu.H200, copy_engines=engines, duplex_share=share, copy_latency_ns=0, launch_ns=0, event_ns=0,
                   sync_ns=0, d2h_bytes_per_s=20e9)
    with simgpu.session(card, numerics="shapes"):
        host, here = ([torch.empty(max(n, 1) << 20, dtype=torch.uint8, **where) for n in mib]
                      for where in ({"pin_memory": True}, {"device": "cuda"}))
        streams, spent = [torch.cuda.Stream(), torch.cuda.Stream()], []
        for ways in ((0,), (1,), (0, 1)):
            torch.cuda.synchronize()
            start = simgpu.clock()
            for way in ways:
                if mib[way]:
                    with torch.cuda.stream(streams[way]):
                        to, of = (host, here) if way else (here, host)
                        to[way].copy_(of[way], non_blocking=True)
            torch.cuda.synchronize()
            spent.append((simgpu.clock() - start) / 1000)
        assert lesson.transfer_ms(*spent[:2], share if engines == 2 else 0.5) == pytest.approx(spent[2], abs=1e-4)
