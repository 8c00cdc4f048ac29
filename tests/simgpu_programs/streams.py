"""Programs on CUDA and simulated: events, streams, and results with and without an edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from simgpu_programs.measure import BUSY_MS, SMALL, busy, host_ms, ones, outcome, program
from utils import simgpu


@program
def events() -> dict[str, Any]:
    fresh, other, timed = torch.cuda.Event(), torch.cuda.Event(), torch.cuda.Event(enable_timing=True)
    recorded = torch.cuda.Event(enable_timing=True)
    found = {
        "query of fresh": fresh.query(),
        "synchronize of fresh": outcome(fresh.synchronize),
        "wait on fresh": outcome(fresh.wait),
        "elapsed_time without timing": outcome(lambda: fresh.elapsed_time(other)),
        "elapsed_time unrecorded": outcome(lambda: timed.elapsed_time(recorded)),
    }
    timed.record()
    busy()
    recorded.record()
    found["query while busy"] = recorded.query()
    found["elapsed_time while busy"] = outcome(lambda: timed.elapsed_time(recorded))
    found["synchronize waits"] = host_ms(recorded.synchronize) > BUSY_MS / 2
    found["query when done"] = recorded.query()
    found["elapsed_time"] = round(timed.elapsed_time(recorded) / BUSY_MS, 1)
    busy()
    found["earlier record is still what was waited for"] = recorded.query()
    recorded.record()
    found["after recording again"] = recorded.query()
    torch.cuda.synchronize()
    return found


@program
def a_wait_binds_at_the_call() -> dict[str, bool]:
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()
    event.record(side)
    torch.cuda.current_stream().wait_event(event)
    busy(side)
    event.record(side)
    early = host_ms(torch.cuda.current_stream().synchronize) > BUSY_MS / 2
    torch.cuda.current_stream().wait_event(event)
    late = host_ms(torch.cuda.current_stream().synchronize) > BUSY_MS / 2
    return {"waits for the second record": early, "wait after the second record": late}


@program
def streams() -> dict[str, Any]:
    made = [torch.cuda.Stream() for _ in range(33)]
    side = made[0]
    found = {
        "different of 33": len({s.cuda_stream for s in made}),
        "33rd equals 1st": made[32] == made[0],
        "priority 5": torch.cuda.Stream(priority=5).priority,
        "default priority": side.priority,
        "current is default": torch.cuda.current_stream() == torch.cuda.default_stream(),
    }
    torch.cuda.synchronize()
    busy(side)
    found["query of busy stream"] = side.query()
    found["default stream is not held by a pool stream"] = (
        host_ms(torch.cuda.default_stream().synchronize) < BUSY_MS / 2
    )
    torch.cuda.synchronize()
    busy()
    found["pool stream is not held by the default stream"] = host_ms(side.synchronize) < BUSY_MS / 2
    torch.cuda.synchronize()
    return found


@program
def overlap() -> dict[str, bool]:
    """Whether two pieces of work take the time of one or of both."""
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    up, down = (torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    x, y = (torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(2))

    def together(one: Callable[[], Any], other: Callable[[], Any], same: bool) -> bool:
        times = []
        for second in (None, other):
            torch.cuda.synchronize()
            start = simgpu.clock()
            with torch.cuda.stream(a):
                one()
            if second is not None:
                with torch.cuda.stream(a if same else b):
                    second()
            torch.cuda.synchronize()
            times.append(simgpu.clock() - start)
        return times[1] < 1.8 * times[0]

    def upload():
        for _ in range(8):
            x.copy_(up, non_blocking=True)

    def download():
        for _ in range(8):
            down.copy_(y, non_blocking=True)

    for warm in (upload, download, busy):
        warm()
    return {
        "kernel beside kernel": together(busy, busy, False),
        "kernels of one stream": together(busy, busy, True),
        "h2d beside d2h": together(upload, download, False),
        "h2d beside h2d": together(upload, upload, False),
        "h2d beside kernel": together(busy, lambda: x.copy_(up, non_blocking=True), False),
    }


@program
def missing_edges_give_old_data() -> dict[str, Any]:
    side = torch.cuda.Stream()
    found = {}
    for edge in (False, True):
        slot, weight = torch.zeros(SMALL, device="cuda"), torch.ones(SMALL).pin_memory()
        torch.cuda.synchronize()
        busy(side)
        with torch.cuda.stream(side):
            slot.copy_(weight, non_blocking=True)
        if edge:
            torch.cuda.current_stream().wait_stream(side)
        found[f"read beside a copy, edge={edge}"] = (slot + 0)[0].item()
        torch.cuda.synchronize()
        out = torch.zeros(SMALL).pin_memory()
        busy()
        out.copy_(slot, non_blocking=True)
        if edge:
            torch.cuda.current_stream().synchronize()
        found[f"host read, edge={edge}"] = float(out.numpy()[0])
        torch.cuda.synchronize()
    return found


@program
def source_changed_after_the_call() -> dict[str, float]:
    found = {}
    for pinned in (True, False):
        source, target = torch.ones(SMALL), torch.zeros(SMALL, device="cuda")
        source = source.pin_memory() if pinned else source
        torch.cuda.synchronize()
        busy()
        target.copy_(source, non_blocking=True)
        source.numpy()[:] = 2
        found["pinned" if pinned else "pageable"] = target[0].item()
    return found


@program
def freed_blocks() -> dict[str, Any]:
    side, found = torch.cuda.Stream(), {}
    for share in (False, True):
        x = ones(1 << 20)
        torch.cuda.synchronize()
        busy(side)
        with torch.cuda.stream(side):
            y = x + 1
        if share:
            x.record_stream(side)
        address = x.data_ptr()
        del x
        z = torch.full((1 << 20,), 7.0, device="cuda")
        found[f"block reused, record_stream={share}"] = z.data_ptr() == address
        torch.cuda.synchronize()
        found[f"reader saw, record_stream={share}"] = y[0].item()
    return found
