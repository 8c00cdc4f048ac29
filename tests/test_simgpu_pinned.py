"""Pinned memory belongs to the process: a buffer pinned in one session is pinned in the next."""

import gc

import pytest
import torch

from utils import simgpu

SHAPE = (256, 256)


def test_a_buffer_pinned_outside_copies_asynchronously_inside():
    with simgpu.session(simgpu.RTX_4090):
        host = torch.ones(SHAPE).pin_memory()
        with simgpu.session(simgpu.RTX_4090.scaled(1 / 8)) as inner:
            x = torch.zeros(SHAPE, device="cuda")
            torch.cuda.synchronize()
            before = simgpu.clock()
            x.copy_(host, non_blocking=True)
            assert simgpu.clock() - before < 20
            host.fill_(2)   # while the copy reads it: seen here, too
            torch.cuda.synchronize()
        assert [hazard.kind for hazard in inner.hazards] == ["WAR"]
        assert host.is_pinned()


def test_a_buffer_outlives_the_session_that_pinned_it():
    with simgpu.session(simgpu.RTX_4090):
        host = torch.ones(SHAPE).pin_memory()
    with simgpu.session(simgpu.RTX_4090) as gpu:
        assert host.is_pinned()
        assert torch.zeros(SHAPE, device="cuda").copy_(host, non_blocking=True)[0, 0].item() == 1
        assert not torch.ones(SHAPE).is_pinned()
    assert not gpu.hazards


def test_the_address_of_a_freed_buffer_is_pinned_no_longer():
    from utils.simgpu import hostmem

    with simgpu.session(simgpu.RTX_4090):
        gc.collect()                       # what earlier tests left behind goes now, not below
        known = len(hostmem._owners)
        host = torch.ones(SHAPE).pin_memory()
        assert len(hostmem._owners) == known + 1
        del host
        gc.collect()
        assert len(hostmem._owners) == known


def test_freed_blocks_that_another_stream_uses_stay_active():
    with simgpu.session(simgpu.RTX_4090.scaled(1 / 8)):
        side, out = torch.cuda.Stream(), torch.empty(SHAPE).pin_memory()
        before = torch.cuda.memory_stats()["active_bytes.all.current"]
        x = torch.ones(SHAPE, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            out.copy_(x, non_blocking=True)
        x.record_stream(side)
        size = x.numel() * 4
        del x
        stats = torch.cuda.memory_stats()
        assert torch.cuda.memory_allocated() == stats["allocated_bytes.all.current"] == before
        assert stats["active_bytes.all.current"] == stats["active_bytes.all.peak"] == before + size
        torch.cuda.synchronize()
        torch.empty(1, device="cuda")   # the allocator looks at its events when memory is asked for
        assert torch.cuda.memory_stats()["active_bytes.all.current"] < before + size


@pytest.mark.parametrize("dtype, asynchronous", [(torch.float32, True), (torch.bfloat16, False)])
def test_both_sides_transposed_alike(dtype, asynchronous):
    """One copy of memory where the dtype is the same; else PyTorch gathers the host's side first, and waits."""
    with simgpu.session(simgpu.RTX_4090) as gpu:
        host, x = torch.randn(SHAPE).pin_memory().t(), torch.zeros(SHAPE, dtype=dtype, device="cuda").t()
        torch.cuda.synchronize()
        before = simgpu.clock()
        x.copy_(host, non_blocking=True)
        assert (simgpu.clock() - before < 8) == asynchronous
        torch.cuda.synchronize()
        assert torch.equal(x.cpu(), host.to(dtype)) and not gpu.hazards
