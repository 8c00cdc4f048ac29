"""Known faults of stream programs, racy and correct, at several copy/compute ratios: slots, events, streams."""

from __future__ import annotations

import pytest
import torch
from simgpu_programs.onload import (
    RATIOS,
    WEIGHT_BYTES,
    D,
    Onload,
    pairs,
    profile,
    reference,
    same,
    weights,
)

from utils import simgpu


@pytest.fixture(params=RATIOS, ids=lambda r: f"ratio{r}")
def gpu(request):
    with simgpu.session(profile(request.param)) as device:
        device.ratio = request.param
        yield device


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
        slot.copy_(w, non_blocking=True)  # the default stream, by mistake
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
