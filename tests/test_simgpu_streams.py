"""The rules of the simulated device, one by one: streams, copies, reads."""

from __future__ import annotations

import threading

import pytest
import torch
from simulated import busy

from utils import simgpu

MIB = 1 << 20


# streams

def test_the_pool_has_32_streams(gpu):
    streams = [torch.cuda.Stream() for _ in range(33)]
    assert len({s.stream_id for s in streams}) == 32 and streams[32] == streams[0]
    assert torch.cuda.Stream(priority=-1) not in streams


def test_stream_contexts(gpu):
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(a):
        assert torch.cuda.current_stream() == a
        with b:
            assert torch.cuda.current_stream() == b
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() == a
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    with pytest.raises(TypeError, match="Stream"):
        torch.cuda.set_stream(3)


def test_current_stream_belongs_to_the_thread(gpu):
    side, seen = torch.cuda.Stream(), {}

    def work():
        seen["stream"] = torch.cuda.current_stream()
        seen["sum"] = torch.ones(3, device="cuda").sum().item()

    with torch.cuda.stream(side):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == {"stream": torch.cuda.default_stream(), "sum": 3}


def test_threads_may_share_the_device(gpu):
    from concurrent.futures import ThreadPoolExecutor

    def work(i):
        x = torch.zeros(8, device="cuda")
        for _ in range(20):
            x = x + i
        return x.sum().item()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(12))) == [160 * i for i in range(12)]
    assert gpu.hazards == []


def test_default_stream_does_not_wait_for_others(gpu):
    x = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        x.add_(1)
    x.add_(1)
    assert [h.kind for h in gpu.hazards] == ["RAW"]


def test_blocking_copy_waits_for_its_own_stream_only(gpu):
    with torch.cuda.stream(torch.cuda.Stream()):
        busy(5)
    x = torch.ones(4, device="cuda")
    assert x.cpu().tolist() == [1] * 4 and gpu.elapsed_ms < 1
    torch.cuda.empty_cache()  # nothing to give back: does not wait
    assert gpu.elapsed_ms < 1
    del x
    torch.cuda.empty_cache()  # waits for the device
    assert gpu.elapsed_ms > 5


def test_to_cpu_non_blocking_is_pinned_and_not_synchronised(gpu):
    busy(1)
    x = torch.ones(4, device="cuda").to("cpu", non_blocking=True)
    assert x.is_pinned() and gpu.elapsed_ms < 0.5
    assert x.isnan().all() and [(h.kind, h.host) for h in gpu.hazards] == [("RAW", True)]


def test_pageable_download_returns_when_done(gpu):
    out, x = torch.zeros(4), torch.ones(4, device="cuda")
    busy(2)
    out.copy_(x, non_blocking=True)
    assert out.tolist() == [1] * 4 and gpu.elapsed_ms > 2 and gpu.hazards == []
    assert gpu.notes[0].kind == "copy not asynchronous" and "not pinned" in gpu.notes[0].text


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.item(),
        lambda x: x.tolist(),
        print,
        bool,
        float,
        lambda x: torch.equal(x, x + 0),
        lambda x: torch.allclose(x, x),
        lambda x: f"{x:.1f}",
        lambda x: x.cpu(),
    ],
)
def test_reading_synchronises(gpu, read, capsys):
    x = torch.ones((), device="cuda")
    busy(2)
    read(x)
    assert gpu.elapsed_ms > 2


def test_numpy_of_a_device_tensor_is_a_type_error(gpu):
    for convert in (lambda x: x.numpy(), lambda x: __import__("numpy").asarray(x)):
        with pytest.raises(TypeError, match="cuda:0"):
            convert(torch.ones(2, device="cuda"))


def test_printing_looks_like_cuda(gpu):
    assert repr(torch.tensor([1, 2], device="cuda")) == "tensor([1, 2], device='cuda:0')"
    assert (
        repr(torch.ones(1, device="cuda", dtype=torch.float64)) == "tensor([1.], device='cuda:0', dtype=torch.float64)"
    )
    assert repr(torch.ones(1, device="cuda", requires_grad=True)) == "tensor([1.], device='cuda:0', requires_grad=True)"


# hazards

def test_hazards_are_found_at_the_call_and_once(gpu):
    x = simgpu.name(torch.zeros(4, device="cuda"), "x")
    torch.cuda.synchronize()
    side = simgpu.name(torch.cuda.Stream(), "onload")
    with torch.profiler.record_function("layer 3"), torch.cuda.stream(side):
        x.add_(1)
    x.mul_(x)
    assert len(gpu.hazards) == 1 and gpu.machine.ops[-1].end == -1  # nothing ran yet
    hazard = gpu.hazards[0]
    assert (hazard.first.layer, hazard.first.stream, hazard.buffer) == ("layer 3", "onload", "x")
    assert str(hazard) == (
        "RAW: mul_ #2 (default stream) reads x (bytes 0 to 16) "
        "while add_ #1 (onload in layer 3) may still be writing it.\n"
        "  Missing edge: add_ #1 -> mul_ #2; nothing on the host or in the streams orders them, whatever the timing.\n"
        "  Add: torch.cuda.default_stream().wait_stream(onload)  # before mul_ #2 is queued; "
        "or wait for an event recorded right after #1"
    )


def test_on_hazard_raise():
    with pytest.raises(simgpu.HazardError, match="WAW") as caught, simgpu.session(simgpu.H200, on_hazard="raise"):
        x = torch.zeros(4, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            x.fill_(1)
    assert caught.value.hazard.kind == "WAW"


def test_ordering_through_a_third_stream_counts(gpu):
    a, b, c = (torch.cuda.Stream() for _ in range(3))
    x = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(a):
        x.add_(1)
    b.wait_stream(a)
    c.wait_stream(b)
    with torch.cuda.stream(c):
        x.add_(1)
    assert gpu.hazards == []
    c.synchronize()  # the host now comes after a, too
    x.add_(1)
    assert gpu.hazards == [] and x.tolist() == [3] * 4


def test_pinned_memory_by_byte_range(gpu):
    host = torch.empty(8, pin_memory=True)
    x = torch.ones(4, device="cuda")
    host[:4].copy_(x, non_blocking=True)
    host[4:] = 5
    assert host[4:].sum() == 20 and gpu.hazards == []
    host[3:5].sum()
    assert [(h.kind, h.byte_range) for h in gpu.hazards] == [("RAW", (12, 16))]
