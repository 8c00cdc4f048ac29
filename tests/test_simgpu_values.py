"""The rules of the simulated device, one by one: values that cannot be trusted, memory."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from simulated import busy, pinned_ones
from torch import nn

from utils import simgpu

KIB, MIB = 1 << 10, 1 << 20
ROOT = Path(__file__).resolve().parents[1]


# values and taint

def test_unwritten_floats_are_nan_and_noted(gpu):
    x = simgpu.name(torch.empty(4, device="cuda"), "scratch")
    x[1:3] = 1
    y = x + 1
    values = y.tolist()
    assert values[1:3] == [2, 2] and values[0] != values[0] and values[3] != values[3]
    assert [n.kind for n in gpu.notes] == ["read before written"] and "scratch" in gpu.notes[0].text


def test_unwritten_integers_never_index(gpu):
    ids = torch.empty(3, dtype=torch.int64, device="cuda")
    ids[0] = 2
    table = torch.arange(8.0, device="cuda").reshape(4, 2)
    rows = torch.nn.functional.embedding(ids, table)
    assert rows[0].tolist() == [4, 5] and rows[1:].isnan().all().item()
    assert (ids + 1).tolist()[1] < -(10**9)
    flags = (ids > 0).to(torch.float32)  # a comparison does not wash it clean
    assert flags.isnan().tolist() == [False, True, True]
    assert table[ids].isnan().any().item()
    target = torch.zeros(4, device="cuda").index_copy_(0, ids, torch.ones(3, device="cuda"))
    assert target.isnan().all().item()  # nobody knows where it wrote
    torch.cuda.synchronize()  # and nothing failed


def test_masked_garbage_is_clean(gpu):
    x = torch.empty(4, device="cuda")
    mask = torch.tensor([True, False, True, False], device="cuda")
    assert torch.where(mask, torch.zeros(4, device="cuda"), x).isnan().tolist() == [False, True, False, True]
    assert x.masked_fill(~mask, 1.0).isnan().tolist() == [True, False, True, False]
    x.fill_(1)
    assert x.tolist() == [1] * 4


def test_taint_follows_the_bytes_to_the_host_and_back(gpu):
    x = torch.empty(4, dtype=torch.int64, device="cuda")
    x[:2] = 1
    host = torch.empty(4, dtype=torch.int64, pin_memory=True)
    host.copy_(x, non_blocking=True)
    torch.cuda.synchronize()
    assert host[:2].tolist() == [1, 1] and host[2] < 0
    again = torch.zeros(4, dtype=torch.int64, device="cuda")
    again.copy_(host, non_blocking=True)
    assert torch.nn.functional.embedding(again, torch.ones(3, 1, device="cuda")).isnan().flatten().tolist() == [
        False,
        False,
        True,
        True,
    ]
    torch.cuda.synchronize()
    host[2:] = 0
    again.copy_(host, non_blocking=True)
    assert again.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("numerics", ["exact", "adversarial"])
def test_a_fresh_tensor_may_be_filled_from_any_stream(numerics):
    with simgpu.session(simgpu.H200, numerics=numerics) as gpu:
        side, host = torch.cuda.Stream(), pinned_ones(64)
        busy(1)
        x = torch.empty(64, device="cuda")  # allocated while its stream is busy, with other work
        with torch.cuda.stream(side):
            x.copy_(host, non_blocking=True)
            total = x.sum()
        side.synchronize()
        torch.cuda.synchronize()
        assert total.item() == 64 and x.tolist() == [1] * 64 and gpu.hazards == [] and gpu.notes == []


def test_factories_inside_torch_functions(gpu):
    attention = nn.MultiheadAttention(8, 2, add_zero_attn=True, add_bias_kv=True, batch_first=True).eval()
    x = torch.randn(1, 3, 8)
    with torch.no_grad():
        wanted = attention(x, x, x)[0]
        found = attention.to("cuda")(x.cuda(), x.cuda(), x.cuda())[0]
    assert torch.allclose(found.cpu(), wanted, atol=1e-6)


def test_legal_reuse_of_a_block_is_clean(gpu):
    for step in range(5):
        x = torch.full((256,), float(step), device="cuda")
        y = x * 2
        del x
        z = torch.empty(256, device="cuda")
        z.copy_(y)
        assert z.sum().item() == 512 * step
    assert gpu.hazards == [] and gpu.notes == []


def test_one_failing_operation_is_reported_once(gpu):
    table, ids = torch.ones(3, 2, device="cuda"), torch.tensor([7], device="cuda")
    torch.nn.functional.embedding(ids, table)
    with pytest.raises(IndexError):
        torch.cuda.synchronize()
    torch.cuda.synchronize()
    assert (table + 1).sum().item() == 12


def test_random_numbers_are_drawn_in_call_order():
    def draw(swap):
        with simgpu.session(simgpu.H200):
            torch.manual_seed(3)
            before = torch.get_rng_state()
            streams = [torch.cuda.Stream(), torch.cuda.Stream()]
            out = []
            for i in range(2):
                with torch.cuda.stream(streams[i]):
                    if i == swap:
                        busy(1)
                    out.append(torch.randn(4, device="cuda"))
            torch.cuda.synchronize()
            assert torch.equal(before, torch.get_rng_state())  # the CPU's generator is not used
            return [t.tolist() for t in out]

    assert draw(0) == draw(1) and draw(0)[0] != draw(0)[1]


def test_shapes_computes_no_values():
    with simgpu.session(simgpu.H200, numerics="shapes") as gpu:
        x = torch.zeros(8192, 8192, device="cuda", dtype=torch.bfloat16)
        y = x @ x
        assert y.shape == (8192, 8192) and torch.cuda.memory_allocated() == 2 * 128 * MIB + 32 * MIB
        torch.cuda.synchronize()
        assert gpu.elapsed_ms == pytest.approx(2 * 8192**3 / (989e12 * 0.69) * 1e3, rel=0.1)
        for read in (lambda: y.cpu(), lambda: y[0, 0].item(), lambda: y.tolist()):
            with pytest.raises(simgpu.Unsupported, match='numerics="shapes"'):
                read()
        with pytest.raises(simgpu.Unsupported, match="depends on values"):
            y.nonzero()
        assert "size=(8192, 8192)" in repr(y)


# memory

def test_caching_allocator(gpu):
    assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0
    x = torch.empty(100, device="cuda")
    assert torch.cuda.memory_allocated() == 512 and torch.cuda.memory_reserved() == 2 * MIB
    address = x.data_ptr()
    del x
    assert torch.cuda.memory_allocated() == 0 and torch.cuda.max_memory_allocated() == 512
    assert torch.empty(90, device="cuda").data_ptr() == address
    with torch.cuda.stream(torch.cuda.Stream()):
        assert torch.empty(90, device="cuda").data_ptr() != address  # blocks stay with their stream
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    big = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    assert (
        torch.cuda.memory_reserved() == 24 * MIB and torch.cuda.memory_stats()["allocated_bytes.all.current"] == 3 * MIB
    )
    del big
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0 and torch.cuda.mem_get_info() == (gpu.profile.memory_bytes,) * 2


@pytest.mark.parametrize(
    "nbytes, allocated, reserved",      # of a new segment: what remains is cut off, or the tensor has it
    [
        (1, 512, 2 * MIB),
        (513, 1 * KIB, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
        (12 * MIB - 512, 12 * MIB, 12 * MIB),
        (12 * MIB + 1, 12 * MIB + 512, 14 * MIB),
    ],
)
def test_what_a_tensor_gets_of_its_segment_and_what_it_asked_for(gpu, nbytes, allocated, reserved):
    x = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    stats = torch.cuda.memory_stats()
    assert torch.cuda.memory_allocated() == stats["active_bytes.all.current"] == allocated
    assert torch.cuda.memory_reserved() == reserved and stats["requested_bytes.all.current"] == x.nbytes == nbytes


@pytest.mark.parametrize(
    "cached, nbytes, allocated",    # between blocks in use, so that nothing else is free
    [
        (2 * KIB, 1536, 1536), (2 * KIB, 1537, 2 * KIB),
        (4 * MIB, 3 * MIB - 512, 3 * MIB - 512), (4 * MIB, 3 * MIB, 4 * MIB),
    ],
)
def test_what_a_tensor_gets_of_a_cached_block(gpu, cached, nbytes, allocated):
    x = torch.empty(cached, dtype=torch.uint8, device="cuda")
    wall = torch.empty(cached, dtype=torch.uint8, device="cuda")
    address = x.data_ptr()
    del x
    before = torch.cuda.memory_allocated()
    x = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    assert x.data_ptr() == address and torch.cuda.memory_allocated() - before == allocated
    assert torch.cuda.memory_stats()["requested_bytes.all.current"] == x.nbytes + wall.nbytes


def test_requested_bytes_and_their_peak(gpu):
    def requested():
        stats = torch.cuda.memory_stats()
        return stats["requested_bytes.all.current"], stats["requested_bytes.all.peak"]

    x, y = torch.empty(100, device="cuda"), torch.empty(11 * MIB, dtype=torch.uint8, device="cuda")
    assert requested() == (400 + 11 * MIB,) * 2 and torch.cuda.max_memory_allocated() == 512 + 12 * MIB
    del y
    assert requested() == (400, 400 + 11 * MIB)
    torch.cuda.reset_peak_memory_stats()
    assert requested() == (400, 400)
    with torch.cuda.stream(side := torch.cuda.Stream()):
        busy()
        z = x + 1
    x.record_stream(side)
    del x       # the other stream may still use it: active, and requested
    assert requested() == (800, 800) and torch.cuda.memory_allocated() == 512
    torch.cuda.synchronize()
    again = torch.empty(1, device="cuda")
    assert requested() == (404, 800) and z.nbytes == 400 and again.nbytes == 4


def test_tensors_may_live_until_the_interpreter_is_gone(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "from utils import simgpu\n"
        "from utils.simgpu import cudagraph, device\n"
        "simgpu.install(simgpu.T4)\n"
        "x, graph = torch.ones(4, device='cuda'), torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    y = x * 2\n"
        "torch.modules, torch.kept = (cudagraph, device), [x, y, graph]    # torch goes last\n"
        "print('done')\n"
    )
    found = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert (found.stdout, found.stderr, found.returncode) == ("done\n", "", 0)


def test_gemm_workspace_once_per_stream(gpu):
    x = torch.ones(8, 8, device="cuda")
    before = torch.cuda.memory_allocated()
    y = x @ x
    z = x @ x
    assert torch.cuda.memory_allocated() == before + 2 * 512 + gpu.profile.workspace_bytes and y.shape == z.shape


def test_views_share_memory(gpu):
    x = torch.zeros(4, 4, device="cuda")
    y = x[1:, 1].unsqueeze(0)
    assert y.data_ptr() == x.data_ptr() + 20 and y.untyped_storage().data_ptr() == x.data_ptr()
    y.fill_(3)
    assert x.sum().item() == 9
    del x
    assert torch.cuda.memory_allocated() == 512 and y.sum().item() == 9


def test_out_of_memory():
    with simgpu.session(replace(simgpu.T4, memory_bytes=64 * MIB), numerics="shapes"):
        x = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.cuda.OutOfMemoryError, match=r"Tried to allocate 40 MiB.*64 MiB"):
            torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        del x
        assert (
            torch.empty(50 * MIB, dtype=torch.uint8, device="cuda").numel() == 50 * MIB
        )  # cached memory is given back first


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_changes_are_counted_as_on_the_cpu_through_every_view(gpu, mode):
    found = {}
    for device in ("cpu", "cuda"):
        base = torch.zeros(16, dtype=torch.uint8, device=device)
        row = base[:8].view(torch.float32)
        counts = found[device] = [base._version]
        with mode():
            for change in (
                lambda b, r: r.add_(1), lambda b, r: b.zero_(), lambda b, r: r.copy_(torch.ones(2)),
                lambda b, r: r + b[0], lambda b, r: r.__setitem__(1, 3), lambda b, r: torch.add(r, 1, out=r),
                lambda b, r: torch.empty_like(b),
            ):
                change(base, row)
                counts += [base._version, row._version]
    assert found["cuda"] == found["cpu"] and found["cpu"][-1] == 5
