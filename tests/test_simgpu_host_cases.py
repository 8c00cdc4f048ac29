"""Known faults of stream programs, racy and correct, at several copy/compute ratios: host memory, blocks, engines."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from simgpu_programs.onload import (
    RATIOS,
    WEIGHT_BYTES,
    D,
    kinds,
    pairs,
    profile,
    same,
    weights,
)

from utils import simgpu


@pytest.fixture(params=RATIOS, ids=lambda r: f"ratio{r}")
def gpu(request):
    with simgpu.session(profile(request.param)) as device:
        device.ratio = request.param
        yield device


# S11, S12, S13, S21: host memory


@pytest.mark.parametrize("sync", ["none", "event", "stream", "query"])
def test_s11_host_reads_before_the_copy_is_done(gpu, sync):
    x = torch.full((D, D), 3.0, device="cuda")
    out = torch.empty(D, D, pin_memory=True)
    out.copy_(x, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    if sync == "event":
        event.synchronize()
    elif sync == "stream":
        torch.cuda.current_stream().synchronize()
    elif sync == "query":
        while not event.query():
            simgpu.host_work(1, "poll")
    total = out.sum().item()
    if sync == "none":
        assert kinds(gpu) == ["RAW"] and gpu.hazards[0].host and gpu.hazards[0].second.stream == "host"
        assert total != 3.0 * D * D
        torch.cuda.synchronize()
        assert out.sum().item() == 3.0 * D * D
    else:
        assert gpu.hazards == [] and total == 3.0 * D * D


@pytest.mark.parametrize("how", ["torch", "numpy", "fresh", "synced"])
def test_s12_pinned_source_changed_after_the_copy_was_queued(gpu, how):
    slot = torch.zeros(D, D, device="cuda")
    source = torch.ones(D, D).pin_memory()
    for step in range(3):
        if how == "fresh":
            source = torch.full((D, D), float(step)).pin_memory()
        elif how == "synced":
            torch.cuda.synchronize()
            source.fill_(float(step))
        elif step and how == "torch":
            source.fill_(float(step))
        elif step and how == "numpy":
            source.numpy()[:] = step
        slot.copy_(source, non_blocking=True)
    torch.cuda.synchronize()
    if how in ("fresh", "synced"):
        assert gpu.hazards == [] and bool((slot == 2).all())
    else:
        assert set(kinds(gpu)) == {"WAR"} and all(h.host for h in gpu.hazards)


@pytest.mark.parametrize("case", ["small", "large", "transposed"])
@pytest.mark.parametrize("event", [True, False])
def test_s13_copies_that_are_not_asynchronous(gpu, case, event):
    side = {"small": 4, "large": 256}.get(case, D)
    source = torch.randn(side, side)
    if case == "transposed":
        source = source.pin_memory().t()
    wanted = source.clone()
    slot = torch.zeros(side, side, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000)
        before = simgpu.clock()
        slot.copy_(source, non_blocking=True)
        held_us = simgpu.clock() - before
    assert (held_us < 100) == (case == "small")
    source.zero_()  # reusable on return, always
    if event:
        torch.cuda.current_stream().wait_stream(stream)
    y = slot + 0
    if event:
        assert gpu.hazards == [] and same(y.cpu(), wanted)
        assert [note.kind for note in gpu.notes] == ["copy not asynchronous"]
    else:
        assert [(h.kind, h.second.name) for h in gpu.hazards] == [("RAW", "add")]


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("change", ["dtype", "device layout"])
@pytest.mark.parametrize("early", [True, False])
def test_s13_copies_that_convert_on_the_device(gpu, way, change, early):
    """Pinned and contiguous on the host: asynchronous on an H200, whatever is converted; so the source stays in use."""
    host = torch.ones(D, D, dtype=torch.float64 if change == "dtype" else torch.float32).pin_memory()
    device = torch.zeros(D, D, device="cuda")
    device = device.t() if change == "device layout" else device
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000)
    before = simgpu.clock()
    (device.copy_(host, non_blocking=True) if way == "up" else host.copy_(device, non_blocking=True))
    assert simgpu.clock() - before < 100
    if not early:
        torch.cuda.synchronize()
    if way == "up":
        host.fill_(2)
        assert early or bool((device == 1).all())
    else:
        assert early or host.sum() == 0
        host.sum()
    assert kinds(gpu) == ([{"up": "WAR", "down": "RAW"}[way]] if early else [])


@pytest.mark.parametrize("converts_on_device", [True, False])
def test_s13_where_the_host_converts(converts_on_device):
    with simgpu.session(replace(profile(1), converts_on_device=converts_on_device)) as gpu:
        source, slot = torch.ones(D, D, dtype=torch.float64).pin_memory(), torch.zeros(D, D, device="cuda")
        torch.cuda._sleep(1_000_000)
        before = simgpu.clock()
        slot.copy_(source, non_blocking=True)
        assert (simgpu.clock() - before < 100) == converts_on_device
        source.fill_(2)
        assert kinds(gpu) == (["WAR"] if converts_on_device else [])


@pytest.mark.parametrize("sync", [True, False])
def test_s21_host_edits_a_weight_that_is_being_prefetched(gpu, sync):
    ws = weights(4)
    slots = [torch.zeros(D, D, device="cuda") for _ in range(2)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        slots[0].copy_(ws[0], non_blocking=True)
    if sync:
        stream.synchronize()
    ws[0].mul_(2.0)
    assert kinds(gpu) == ([] if sync else ["WAR"])


# S14, S15, S17 to S20


@pytest.mark.parametrize("fix", ["none", "record_stream", "event"])
def test_s14_freed_while_another_stream_reads_it(gpu, fix):
    side = torch.cuda.Stream()
    x = torch.ones(D, D, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000)
        y = x + 1
    if fix == "record_stream":
        x.record_stream(side)
    address = x.data_ptr()
    del x
    if fix == "event":
        torch.cuda.current_stream().wait_stream(side)
    z = torch.full((D, D), 7.0, device="cuda")
    assert (z.data_ptr() == address) == (fix != "record_stream")
    side.synchronize()
    if fix == "none":
        assert [(h.kind, h.first.name, h.second.name) for h in gpu.hazards] == [("WAR", "add", "full")]
        assert "record_stream" in str(gpu.hazards[0])
        assert not bool((y == 2).all())
    else:
        assert gpu.hazards == [] and bool((y == 2).all()) and bool((z == 7).all())


@pytest.mark.parametrize("same_slot", [True, False])
def test_s15_slots_sliced_from_one_tensor(gpu, same_slot):
    ws = weights(2)
    ring = simgpu.name(torch.zeros(4, D, D, device="cuda"), "ring")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        ring[1].copy_(ws[0], non_blocking=True)
    ring[1 if same_slot else 2].mul_(2.0)
    if same_slot:
        assert gpu.hazards[0].kind == "RAW" and gpu.hazards[0].byte_range == (WEIGHT_BYTES, 2 * WEIGHT_BYTES)
    else:
        assert gpu.hazards == []


def test_s15_columns_of_one_tensor(gpu):
    ring = torch.zeros(D, 2 * D, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        ring[:, :D].add_(1)
    ring[:, D:].add_(1)
    assert gpu.hazards == []
    ring[:, D - 1 :].add_(1)
    assert kinds(gpu) == ["RAW"]


@pytest.mark.parametrize("ordered", [True, False])
def test_s17_kv_block_stored_and_reloaded(gpu, ordered):
    compute, offload = torch.cuda.current_stream(), torch.cuda.Stream()
    block = torch.zeros(D, D, device="cuda")
    x = torch.randn(D, D, device="cuda")
    home = torch.empty(D, D, pin_memory=True)
    torch.cuda.synchronize()
    torch.mul(x, 2, out=block)  # the layer writes the block
    if ordered:
        offload.wait_stream(compute)
    with torch.cuda.stream(offload):
        home.copy_(block, non_blocking=True)
    y = block + 1  # and goes on reading it
    if ordered:
        offload.wait_stream(compute)
    with torch.cuda.stream(offload):
        block.copy_(home, non_blocking=True)
    assert pairs(gpu) == ([] if ordered else [("RAW", "mul", "copy_"), ("WAR", "add", "copy_")])
    torch.cuda.synchronize()
    if ordered:
        assert torch.equal(y.cpu(), x.cpu() * 2 + 1) and torch.equal(block.cpu(), x.cpu() * 2)
        assert gpu.hazards == []  # the host buffer changed by the store, not behind the copy's back


@pytest.mark.parametrize("wait", [True, False])
def test_s18_views_built_early_read_late(gpu, wait):
    (w,) = weights(1)
    slot = torch.zeros(D, D, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        slot.copy_(w, non_blocking=True)
    early = slot.t()[1:, :3]
    if wait:
        torch.cuda.current_stream().wait_stream(stream)
    y = early.clone()
    assert kinds(gpu) == ([] if wait else ["RAW"])
    if wait:
        assert torch.equal(y.cpu(), w.t()[1:, :3])


@pytest.mark.parametrize("event", [True, False])
def test_s19_two_copies_on_one_engine(gpu, event):
    ws = weights(2)
    slot = torch.zeros(D, D, device="cuda")
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    with torch.cuda.stream(streams[0]):
        slot.copy_(ws[0], non_blocking=True)
    if event:
        streams[1].wait_stream(streams[0])
    with torch.cuda.stream(streams[1]):
        slot.copy_(ws[1], non_blocking=True)
    assert pairs(gpu) == ([] if event else [("WAW", "copy_", "copy_")])
    spans = [
        (start, start + duration)
        for start, duration, kind in zip(
            *(gpu.trace().columns[c] for c in ("start_us", "duration_us", "kind")), strict=True
        )
        if kind == "h2d"
    ]
    assert spans[0][1] <= spans[1][0]


@pytest.mark.parametrize("how", ["synchronize", "query", "none"])
def test_s20_host_edges(gpu, how):
    (w,) = weights(1)
    slot = torch.zeros(D, D, device="cuda")
    torch.cuda.synchronize()
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        slot.copy_(w, non_blocking=True)
        event.record()
    if how == "synchronize":
        event.synchronize()
    elif how == "query":
        while not event.query():
            pass
    else:
        simgpu.host_work(10_000_000, "long enough for the copy to be done")
    y = slot + 0
    assert pairs(gpu) == ([("RAW", "copy_", "add")] if how == "none" else [])
    assert torch.equal(y.cpu(), w)  # in time, even where only luck ordered it
