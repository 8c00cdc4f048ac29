"""Known faults of stream programs, each in a racy and in a correct form, at several copy/compute ratios."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from utils import simgpu

RATIOS = (0.1, 0.5, 1, 2, 10)
D = 64                                                  # stands for 8192: the profile is scaled by 1/128
WEIGHT_BYTES, GEMM_FLOPS = D * D * 4, 2 * D**3


def profile(ratio: float) -> simgpu.Profile:
    return simgpu.RTX_5060_LAPTOP.scaled(D / 8192).with_ratio(ratio, WEIGHT_BYTES, GEMM_FLOPS)


@pytest.fixture(params=RATIOS, ids=lambda r: f"ratio{r}")
def gpu(request):
    with simgpu.session(profile(request.param)) as device:
        device.ratio = request.param
        yield device


def kinds(gpu) -> list[str]:
    return [h.kind for h in gpu.hazards]


def pairs(gpu) -> list[tuple[str, str, str]]:
    return [(h.kind, h.first.name, h.second.name) for h in gpu.hazards]


def weights(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(D, D, generator=generator) / 8).pin_memory() for _ in range(count)]


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


def reference(x: torch.Tensor, ws: list[torch.Tensor]) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        for w in ws:
            x = x @ w
        return x


# S1

@pytest.mark.parametrize("wait", [False, True])
def test_s1_gemm_reads_what_a_copy_writes(gpu, wait):
    (w,) = weights(1)
    slot = simgpu.name(torch.zeros(D, D, device="cuda"), "slot 0")
    x = torch.eye(D, device="cuda")
    torch.cuda.synchronize()
    onload = torch.cuda.Stream()
    with torch.cuda.stream(onload):
        slot.copy_(w, non_blocking=True)
    if wait:
        torch.cuda.current_stream().wait_stream(onload)
    y = (x @ slot).cpu()
    if wait:
        assert gpu.hazards == [] and same(y, reference(torch.eye(D), [w]))
    else:
        assert pairs(gpu) == [("RAW", "copy_", "mm")]
        hazard = gpu.hazards[0]
        assert hazard.buffer == "slot 0" and hazard.byte_range == (0, WEIGHT_BYTES) and not hazard.host
        assert "wait_stream" in str(hazard) and "stream 1" in str(hazard)
        assert not same(y, reference(torch.eye(D), [w]))


# S2, S3, S4: the double buffer and its relatives

class Onload:
    """Layers streamed through ``slots`` buffers, with each wait that makes it correct as a switch."""

    def __init__(self, ws, slots=2, *, wait_free=True, wait_calls=True, carry=True, shared_event=False):
        self.ws, self.count = ws, slots
        self.wait_free, self.wait_calls, self.carry = wait_free, wait_calls, carry
        self.stream = torch.cuda.Stream()
        self.slots = [simgpu.name(torch.empty(D, D, device="cuda"), f"slot {i}") for i in range(slots)]
        self.loaded = [torch.cuda.Event() for _ in range(slots)]
        self.free = [torch.cuda.Event() for _ in range(slots)]
        if shared_event:
            self.loaded = [self.loaded[0]] * slots
        self.turn = 0
        self.stream.wait_stream(torch.cuda.current_stream())

    def load(self, layer, slot, first):
        with torch.cuda.stream(self.stream):
            if self.wait_free and (self.wait_calls or not first):
                self.stream.wait_event(self.free[slot])
            self.slots[slot].copy_(self.ws[layer], non_blocking=True)
            self.loaded[slot].record()

    def __call__(self, x):
        base = self.turn if self.carry else 0
        slot_of = lambda layer: (base + layer) % self.count  # noqa: E731
        ahead = self.count - 1
        for layer in range(min(ahead, len(self.ws))):
            self.load(layer, slot_of(layer), True)
        for layer in range(len(self.ws)):
            if layer + ahead < len(self.ws):
                self.load(layer + ahead, slot_of(layer + ahead), layer + ahead < self.count)
            torch.cuda.current_stream().wait_event(self.loaded[slot_of(layer)])
            x = x @ self.slots[slot_of(layer)]
            self.free[slot_of(layer)].record()
        self.turn = (base + len(self.ws)) % self.count
        return x


def test_s2_double_buffer_without_the_wait_for_free_slots(gpu):
    ws = weights(8)
    x = torch.eye(D, device="cuda")
    y = Onload(ws, wait_free=False)(x).cpu()
    assert ("WAR", "mm", "copy_") in pairs(gpu)
    if gpu.ratio <= 0.5:
        assert not same(y, reference(torch.eye(D), ws))


@pytest.mark.parametrize("ratio", RATIOS)
def test_s2_is_always_wrong_with_adversarial_numerics(ratio):
    with simgpu.session(profile(ratio), numerics="adversarial") as gpu:
        ws = weights(8)
        y = Onload(ws, wait_free=False)(torch.eye(D, device="cuda")).cpu()
        assert gpu.hazards and not same(y, reference(torch.eye(D), ws))
        assert bool(y.isnan().any())


@pytest.mark.parametrize("numerics", ["exact", "adversarial"])
@pytest.mark.parametrize("layers", [5, 6])
@pytest.mark.parametrize("ratio", RATIOS)
def test_s3_clean_over_five_calls(ratio, layers, numerics):
    with simgpu.session(profile(ratio), numerics=numerics) as gpu:
        ws = weights(layers)
        program = Onload(ws)
        xs = [torch.randn(D, D, device="cuda") for _ in range(5)]
        ys = [program(x) for x in xs]
        for x, y in zip(xs, ys, strict=True):
            wanted = x
            for w in ws:
                wanted = wanted @ w.to("cuda")
            assert torch.equal(y, wanted)
        assert gpu.hazards == []


@pytest.mark.parametrize("layers", [23, 24])
def test_s3_no_wait_between_calls_names_the_pair(gpu, layers):
    ws = weights(layers)
    program = Onload(ws, wait_calls=False, carry=False)
    x = torch.eye(D, device="cuda")
    for _ in range(5):
        program(x)
    assert gpu.hazards and {(h.kind, h.first.name, h.second.name) for h in gpu.hazards} == {("WAR", "mm", "copy_")}
    first = gpu.hazards[0]
    assert first.buffer == "slot 0"
    # operations: x, then one copy and one mm per layer; the second call's first copy meets slot 0's last reader
    copies_and_gemms = 1 + 2 * layers
    assert first.second.index == copies_and_gemms
    assert first.first.index == copies_and_gemms - (1 if layers % 2 else 2)


@pytest.mark.parametrize(("layers", "slots"), [(3, 2), (24, 5)])
@pytest.mark.parametrize("carry", [True, False])
def test_s4_layers_that_do_not_divide_by_slots(gpu, layers, slots, carry):
    ws = weights(layers)
    program = Onload(ws, slots, carry=carry, wait_calls=carry)
    x = torch.eye(D, device="cuda")
    ys = [program(x) for _ in range(3)]
    if carry:
        assert gpu.hazards == []
        assert all(same(y.cpu(), reference(torch.eye(D), ws)) for y in ys)
    else:
        assert ("WAR", "mm", "copy_") in pairs(gpu)


def test_s5_one_event_for_two_slots(gpu):
    ws = weights(6)
    program = Onload(ws, shared_event=True)
    # the last record wins: move the record of the other slot between a slot's load and its use
    stream, slots = program.stream, program.slots
    event = torch.cuda.Event()
    with torch.cuda.stream(stream):
        event.record()
        slots[0].copy_(ws[0], non_blocking=True)
    torch.cuda.current_stream().wait_event(event)
    torch.eye(D, device="cuda") @ slots[0]
    assert pairs(gpu) == [("RAW", "copy_", "mm")]


# S6, S7: what a wait binds to

@pytest.mark.parametrize("record_first", [False, True])
def test_s6_wait_before_record(gpu, record_first, capfd):
    (w,) = weights(1)
    slot = torch.zeros(D, D, device="cuda")
    x = torch.eye(D, device="cuda")
    torch.cuda.synchronize()
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    if not record_first:
        torch.cuda.current_stream().wait_event(event)
    with torch.cuda.stream(stream):
        slot.copy_(w, non_blocking=True)
        event.record()
    if record_first:
        torch.cuda.current_stream().wait_event(event)
    y = x @ slot
    if record_first:
        assert gpu.hazards == [] and gpu.notes == [] and same(y.cpu(), reference(torch.eye(D), [w]))
    else:
        assert pairs(gpu) == [("RAW", "copy_", "mm")]
        assert [note.kind for note in gpu.notes] == ["wait on an event never recorded"]
        assert gpu.notes[0].text in str(gpu.hazards[0])
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("second_copy_read", [False, True])
def test_s7_a_wait_binds_to_the_record_at_the_call(gpu, second_copy_read):
    w0, w1 = weights(2)
    slots = [torch.zeros(D, D, device="cuda") for _ in range(2)]
    x = torch.eye(D, device="cuda")
    torch.cuda.synchronize()
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        slots[0].copy_(w0, non_blocking=True)
        event.record()
    torch.cuda.current_stream().wait_event(event)
    with torch.cuda.stream(stream):
        slots[1].copy_(w1, non_blocking=True)
        event.record()
    y = x @ slots[1 if second_copy_read else 0]
    if second_copy_read:
        assert pairs(gpu) == [("RAW", "copy_", "mm")]
    else:
        assert gpu.hazards == [] and same(y.cpu(), reference(torch.eye(D), [w0]))


# S8, S9, S10, S16: the wrong stream

@pytest.mark.parametrize("inside", [True, False])
def test_s8_copy_in_the_wrong_stream_context(gpu, inside):
    (w,) = weights(1)
    slot = torch.zeros(D, D, device="cuda")
    x = torch.eye(D, device="cuda")
    torch.cuda.synchronize()
    onload, compute = torch.cuda.Stream(), torch.cuda.Stream()
    event = torch.cuda.Event()
    with torch.cuda.stream(onload):
        if inside:
            slot.copy_(w, non_blocking=True)
    if not inside:
        slot.copy_(w, non_blocking=True)            # the default stream, by mistake
    event.record(onload)
    with torch.cuda.stream(compute):
        compute.wait_event(event)
        y = x @ slot
    if inside:
        assert gpu.hazards == []
        compute.synchronize()
        assert same(y.cpu(), reference(torch.eye(D), [w]))
    else:
        assert pairs(gpu) == [("RAW", "copy_", "mm")]
        assert gpu.hazards[0].first.stream == "default stream"


@pytest.mark.parametrize("captured_early", [True, False])
def test_s9_current_stream_captured_at_construction(gpu, captured_early):
    (w,) = weights(1)
    slot = torch.zeros(D, D, device="cuda")
    x = torch.eye(D, device="cuda")
    torch.cuda.synchronize()
    at_construction = torch.cuda.current_stream()
    onload = torch.cuda.Stream()
    with torch.cuda.stream(torch.cuda.Stream()):
        with torch.cuda.stream(onload):
            slot.copy_(w, non_blocking=True)
        (at_construction if captured_early else torch.cuda.current_stream()).wait_stream(onload)
        x @ slot
    assert pairs(gpu) == ([("RAW", "copy_", "mm")] if captured_early else [])


@pytest.mark.parametrize("waits", [1, 2])
def test_s10_two_producers(gpu, waits):
    ws = weights(2)
    big = torch.zeros(2, D, D, device="cuda")
    x = torch.zeros(D, D, device="cuda")
    torch.cuda.synchronize()
    producers = [torch.cuda.Stream() for _ in range(2)]
    for stream, part, w in zip(producers, big, ws, strict=True):
        with torch.cuda.stream(stream):
            part.copy_(w, non_blocking=True)
    for stream in producers[:waits]:
        torch.cuda.current_stream().wait_stream(stream)
    total = big.sum(0) + x
    if waits == 2:
        assert gpu.hazards == [] and same(total.cpu(), ws[0] + ws[1])
    else:
        assert [h.kind for h in gpu.hazards] == ["RAW"] and gpu.hazards[0].first.stream == "stream 2"


@pytest.mark.parametrize("wait", [True, False])
def test_s16_slot_initialised_on_the_default_stream(gpu, wait):
    stream = torch.cuda.Stream()
    slot = torch.zeros(D, D, device="cuda")
    if wait:
        stream.wait_stream(torch.cuda.current_stream())
    (w,) = weights(1)
    with torch.cuda.stream(stream):
        slot.copy_(w, non_blocking=True)
    assert pairs(gpu) == ([] if wait else [("WAW", "zeros", "copy_")])


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
    source.zero_()                                       # reusable on return, always
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
    """Pinned and contiguous on the host: asynchronous on an H200, whatever has to be converted; so the source stays in use."""
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
    ring[:, D - 1:].add_(1)
    assert kinds(gpu) == ["RAW"]


@pytest.mark.parametrize("ordered", [True, False])
def test_s17_kv_block_stored_and_reloaded(gpu, ordered):
    compute, offload = torch.cuda.current_stream(), torch.cuda.Stream()
    block = torch.zeros(D, D, device="cuda")
    x = torch.randn(D, D, device="cuda")
    home = torch.empty(D, D, pin_memory=True)
    torch.cuda.synchronize()
    torch.mul(x, 2, out=block)                          # the layer writes the block
    if ordered:
        offload.wait_stream(compute)
    with torch.cuda.stream(offload):
        home.copy_(block, non_blocking=True)
    y = block + 1                                       # and goes on reading it
    if ordered:
        offload.wait_stream(compute)
    with torch.cuda.stream(offload):
        block.copy_(home, non_blocking=True)
    assert pairs(gpu) == ([] if ordered else [("RAW", "mul", "copy_"), ("WAR", "add", "copy_")])
    torch.cuda.synchronize()
    if ordered:
        assert torch.equal(y.cpu(), x.cpu() * 2 + 1) and torch.equal(block.cpu(), x.cpu() * 2)
        assert gpu.hazards == []                        # the host buffer changed by the store, not behind the copy's back


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
    spans = [(start, start + duration) for start, duration, kind in zip(
        *(gpu.trace().columns[c] for c in ("start_us", "duration_us", "kind")), strict=True) if kind == "h2d"]
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
    assert torch.equal(y.cpu(), w)                      # in time, even where only luck ordered it
