"""The rules of the simulated device, one by one."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace

import pytest
import torch
from torch import nn

from utils import simgpu
from utils.trace import Trace, record

MIB = 1 << 20


@pytest.fixture
def gpu():
    with simgpu.session(simgpu.H200) as device:
        yield device


def pinned_ones(*shape):
    return torch.ones(*shape).pin_memory()


def busy(ms: float = 1.0) -> None:
    """Keep the current stream occupied."""
    torch.cuda._sleep(int(ms * 1e6))


# sessions

def everything_patched():
    return {(module.__name__, name): value for module in (torch.cuda, torch.cuda.memory, torch.cuda.streams, torch.cuda.nvtx)
            for name, value in vars(module).items()} | {
        ("record_function", name): value for name, value in vars(torch.autograd.profiler.record_function).items()} | {
        ("Thread", "run"): threading.Thread.run, ("mode", 0): len(torch.overrides._get_current_function_mode_stack())}


def test_torch_is_restored():
    before = everything_patched()
    with simgpu.session():
        assert torch.cuda.is_available() and everything_patched() != before
        with simgpu.session(simgpu.T4):
            pass
        assert torch.cuda.is_available()
    assert everything_patched() == before
    with pytest.raises(ZeroDivisionError), simgpu.session():
        1 / 0  # noqa: B018
    assert everything_patched() == before and simgpu.active() is None
    device = simgpu.install(simgpu.A100)
    assert simgpu.active() is device
    simgpu.uninstall()
    assert everything_patched() == before
    with pytest.raises(RuntimeError, match="no simulated device is installed"):
        simgpu.uninstall()


def test_inner_session_suspends_the_outer():
    with simgpu.session(simgpu.A100) as outer:
        x, stream, event = torch.ones(2, device="cuda"), torch.cuda.Stream(), torch.cuda.Event()
        with simgpu.session(simgpu.T4) as inner:
            assert simgpu.active() is inner and "T4" in torch.cuda.get_device_name()
            for use in (lambda: x + 1, lambda: x.cpu(), stream.synchronize, event.record, lambda: torch.cuda.set_stream(stream)):
                with pytest.raises(RuntimeError, match=r"A100.*T4"):
                    use()
        assert simgpu.active() is outer and (x + 1).tolist() == [2, 2]
    assert x.tolist() == [1, 1] and "cuda:0" in repr(x)         # still readable
    with pytest.raises(RuntimeError, match="session that has ended"):
        x + 1
    with pytest.raises(RuntimeError, match="no simulated device is active"):
        stream.synchronize()


def test_pending_work_runs_at_a_normal_exit_only():
    with simgpu.session() as gpu:
        out = torch.empty(4, pin_memory=True)
        out.copy_(torch.ones(4, device="cuda"), non_blocking=True)
    assert out.tolist() == [1] * 4
    with pytest.raises(KeyError), simgpu.session() as gpu:
        out = torch.empty(4, pin_memory=True)
        out.copy_(torch.ones(4, device="cuda"), non_blocking=True)
        raise KeyError
    assert out.isnan().all() and gpu.machine.ops[-1].end == -1


def test_arguments_are_checked():
    for arguments in ({"numerics": "fast"}, {"on_hazard": "ignore"}, {"keep": "some"}):
        with pytest.raises(ValueError, match="must be one of"), simgpu.session(**arguments):
            pass
    with pytest.raises(TypeError, match="profile"), simgpu.session("H200"):
        pass
    assert simgpu.active() is None and not torch.cuda._is_in_bad_fork()


# time

def test_clock_counts_launches_waits_and_host_work_only(gpu):
    sum(range(100_000))
    assert gpu.elapsed_ms == 0 and simgpu.clock() == 0
    simgpu.host_work(250, "tokenise")
    assert simgpu.clock() == 250 and gpu.elapsed_ms == 0.25
    x = torch.ones(4, device="cuda")
    assert simgpu.clock() == 250 + gpu.profile.launch_ns / 1000
    busy(3)
    launched = simgpu.clock()
    assert launched < 300
    torch.cuda.synchronize()
    assert simgpu.clock() > 3000
    with pytest.raises(ValueError, match="-1"):
        simgpu.host_work(-1)
    assert x.sum().item() == 4


def test_polling_ends_and_costs(gpu):
    busy(0.05)
    event = torch.cuda.Event()
    event.record()
    polls = 0
    while not event.query():
        polls += 1
    assert polls == pytest.approx(50, abs=5)
    assert torch.cuda.Event().query() is True                   # never recorded


def test_launch_queue_depth_blocks_the_host():
    with simgpu.session(replace(simgpu.H200, queue_depth=4)) as gpu:
        for _ in range(4):
            busy(1)
        assert gpu.elapsed_ms < 0.1
        busy(1)
        assert 1 <= gpu.elapsed_ms < 1.1


def test_streams_overlap_and_engines_do_not():
    profile = replace(simgpu.H200, duplex_share=0.5)
    big = 1 << 22
    up, down = pinned_run(profile, big, ("h2d",)), pinned_run(profile, big, ("d2h",))
    both = pinned_run(profile, big, ("h2d", "d2h"))
    assert both == pytest.approx(2 * max(up, down), rel=0.02)                 # each at half its rate
    assert pinned_run(replace(profile, duplex_share=1.0), big, ("h2d", "d2h")) == pytest.approx(max(up, down), rel=0.02)
    assert pinned_run(profile, big, ("h2d", "h2d")) == pytest.approx(2 * up, rel=0.02)
    shared = replace(profile, copy_engines=1)
    assert pinned_run(shared, big, ("h2d", "d2h")) == pytest.approx(up + down, rel=0.02)


def pinned_run(profile, count, directions) -> float:
    with simgpu.session(profile, numerics="shapes") as gpu:
        for direction in directions:
            host, device = torch.empty(count, pin_memory=True), torch.empty(count, device="cuda")
            with torch.cuda.stream(torch.cuda.Stream()):
                (device.copy_(host, non_blocking=True) if direction == "h2d" else host.copy_(device, non_blocking=True))
        torch.cuda.synchronize()
        return gpu.elapsed_ms


def test_small_kernels_overlap_and_large_ones_do_not():
    def run(side, overlap):
        with simgpu.session(replace(simgpu.H200, small_kernels_overlap=overlap, kernel_latency_ns=50_000), numerics="shapes") as gpu:
            xs = [torch.empty(side, side, device="cuda") for _ in range(2)]
            for x in xs:
                with torch.cuda.stream(torch.cuda.Stream()):
                    x @ x
            torch.cuda.synchronize()
            return gpu.elapsed_ms
    assert run(64, True) < 0.7 * run(64, False)
    assert run(8192, True) == pytest.approx(run(8192, False), rel=0.01)


def test_priorities_decide_who_runs_next(gpu):
    low, high = torch.cuda.Stream(priority=0), torch.cuda.Stream(priority=-5)
    assert (low.priority, high.priority) == (0, -1)
    x = torch.zeros(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    for stream in (low, low, high):
        with torch.cuda.stream(stream):
            x @ x
    ran = [op.queue.name for op in sorted(gpu.machine.ops[1:], key=lambda op: op.launch)]
    gpu.machine.flush()
    order = [op.queue.name for op in sorted(gpu.machine.ops[1:], key=lambda op: op.start)]
    assert ran == ["stream 1", "stream 1", "stream 2"] and order == ["stream 1", "stream 2", "stream 1"]


def test_event_times(gpu):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    start.record()
    busy(2)
    end.record()
    with pytest.raises(RuntimeError, match="not ready"):
        start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(2, abs=0.05)
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.cuda.Event().elapsed_time(end)


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
    torch.cuda.empty_cache()                                    # nothing to give back: does not wait
    assert gpu.elapsed_ms < 1
    del x
    torch.cuda.empty_cache()                                    # waits for the device
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


@pytest.mark.parametrize("read", [lambda x: x.item(), lambda x: x.tolist(), print, bool, float, lambda x: torch.equal(x, x + 0),
                                  lambda x: torch.allclose(x, x), lambda x: f"{x:.1f}", lambda x: x.cpu()])
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
    assert repr(torch.ones(1, device="cuda", dtype=torch.float64)) == "tensor([1.], device='cuda:0', dtype=torch.float64)"
    assert repr(torch.ones(1, device="cuda", requires_grad=True)) == "tensor([1.], device='cuda:0', requires_grad=True)"


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
    assert (ids + 1).tolist()[1] < -10**9
    flags = (ids > 0).to(torch.float32)                         # a comparison does not wash it clean
    assert flags.isnan().tolist() == [False, True, True]
    assert table[ids].isnan().any().item()
    target = torch.zeros(4, device="cuda").index_copy_(0, ids, torch.ones(3, device="cuda"))
    assert target.isnan().all().item()                          # nobody knows where it wrote
    torch.cuda.synchronize()                                    # and nothing failed


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
    assert torch.nn.functional.embedding(again, torch.ones(3, 1, device="cuda")).isnan().flatten().tolist() == [False, False, True, True]
    torch.cuda.synchronize()
    host[2:] = 0
    again.copy_(host, non_blocking=True)
    assert again.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("numerics", ["exact", "adversarial"])
def test_a_fresh_tensor_may_be_filled_from_any_stream(numerics):
    with simgpu.session(simgpu.H200, numerics=numerics) as gpu:
        side, host = torch.cuda.Stream(), pinned_ones(64)
        busy(1)
        x = torch.empty(64, device="cuda")              # allocated while its stream is busy, with other work
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
            assert torch.equal(before, torch.get_rng_state())   # the CPU's generator is not used
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
        assert torch.empty(90, device="cuda").data_ptr() != address         # blocks stay with their stream
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    big = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() == 24 * MIB and torch.cuda.memory_stats()["allocated_bytes.all.current"] == 3 * MIB
    del big
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0 and torch.cuda.mem_get_info() == (gpu.profile.memory_bytes,) * 2


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
        assert torch.empty(50 * MIB, dtype=torch.uint8, device="cuda").numel() == 50 * MIB      # cached memory is given back first


# hazards

def test_hazards_are_found_at_the_call_and_once(gpu):
    x = simgpu.name(torch.zeros(4, device="cuda"), "x")
    torch.cuda.synchronize()
    side = simgpu.name(torch.cuda.Stream(), "onload")
    with torch.profiler.record_function("layer 3"), torch.cuda.stream(side):
        x.add_(1)
    x.mul_(x)
    assert len(gpu.hazards) == 1 and gpu.machine.ops[-1].end == -1         # nothing ran yet
    hazard = gpu.hazards[0]
    assert (hazard.first.layer, hazard.first.stream, hazard.buffer) == ("layer 3", "onload", "x")
    assert str(hazard) == (
        "RAW: mul_ #2 (default stream) reads x (bytes 0 to 16) while add_ #1 (onload in layer 3) may still be writing it.\n"
        "  Missing edge: add_ #1 -> mul_ #2; nothing on the host or in the streams orders them, whatever the timing.\n"
        "  Add: torch.cuda.default_stream().wait_stream(onload)  # before mul_ #2 is queued; or wait for an event recorded right after #1")


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
    c.synchronize()                                             # the host now comes after a, too
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


# moves, modules, profiles

def test_module_to_and_deepcopy(gpu):
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    x = torch.randn(2, 4)
    with torch.no_grad():
        wanted = net(x)
        net.to("cuda")
        assert all(p.is_cuda and isinstance(p, nn.Parameter) for p in net.parameters())
        twin = copy.deepcopy(net).half()
        assert twin[0].weight.data_ptr() != net[0].weight.data_ptr() and twin[0].weight.dtype is torch.float16
        assert torch.allclose(net(x.cuda()).cpu(), wanted, atol=1e-6)
        assert torch.allclose(net.cpu()(x), wanted)
        assert not any(p.is_cuda for p in net.parameters())


def test_default_device(gpu):
    with torch.device("cuda"):
        assert torch.ones(2).is_cuda and nn.Linear(2, 2).weight.is_cuda and not torch.ones(2, device="cpu").is_cuda
    assert not torch.ones(2).is_cuda


def test_parameter_data_moves_between_devices(gpu):
    layer = nn.Linear(4, 4).requires_grad_(False)
    home, x = layer.weight.data, torch.randn(2, 4)
    wanted = layer(x)
    for p in layer.parameters():
        p.data = p.data.to("cuda")
    assert layer.weight.is_cuda and torch.allclose(layer(x.cuda()).cpu(), wanted, atol=1e-6)
    layer.weight.data, layer.bias.data = home, layer.bias.data.cpu()
    assert type(layer.weight) is nn.Parameter and torch.equal(layer(x), wanted)


def test_generators(gpu):
    def draw(seed):
        return torch.randn(3, device="cuda", generator=torch.Generator(device="cuda").manual_seed(seed)).tolist()
    assert draw(1) == draw(1) != draw(2) and isinstance(torch.Generator(), torch.Generator)


def test_parameter_data_can_be_swapped(gpu):
    layer = nn.Linear(4, 4, bias=False).to("cuda")
    slot = torch.full((4, 4), 2.0, device="cuda")
    layer.weight.data = slot
    with torch.no_grad():
        assert layer(torch.ones(1, 4, device="cuda")).tolist() == [[8.0] * 4]
    layer.weight.data = torch.empty(0, device="cuda")
    assert layer.weight.shape == (0,)


@pytest.mark.parametrize("use", [
    lambda x: x.sum().backward(), lambda x: x.resize_(9), lambda x: torch.cuda.ExternalStream(0), lambda x: torch.cuda.utilization(),
    lambda x: torch.autocast("cuda").__enter__(), lambda x: torch.cuda.make_graphed_callables(None, None), lambda x: torch.save(x, "/dev/null"), lambda x: torch.cuda.Event(interprocess=True),
])
def test_what_is_not_modelled_says_so(gpu, use):
    with pytest.raises(simgpu.Unsupported, match="simulated device"):
        use(torch.ones(3, device="cuda"))


def test_mixing_devices_is_an_error(gpu):
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(3, device="cuda:1")
    assert (x + torch.tensor(1.0)).tolist() == [2] * 3


def test_scaled_profiles_keep_times_and_memory():
    def run(profile, side):
        with simgpu.session(profile, numerics="shapes") as gpu:
            host = torch.empty(side, side, dtype=torch.bfloat16, pin_memory=True)
            x = host.to("cuda", non_blocking=True)
            for _ in range(4):
                x = torch.relu(x @ x)
            torch.cuda.synchronize()
            return gpu.elapsed_ms, torch.cuda.max_memory_allocated()
    full, small = run(simgpu.H200, 8192), run(simgpu.H200.scaled(1 / 64), 128)
    assert small[0] == pytest.approx(full[0], rel=1e-6) and small[1] * 64**2 == full[1]
    with pytest.raises(ValueError, match="above 0"):
        simgpu.H200.scaled(0)


@pytest.mark.parametrize("ratio", [0.1, 1, 10])
def test_with_ratio(ratio):
    side = 8192
    profile = simgpu.A100.with_ratio(ratio, side * side * 2, 2 * side**3)
    with simgpu.session(profile, numerics="shapes") as gpu:
        w = torch.empty(side, side, dtype=torch.bfloat16, pin_memory=True)
        torch.mm(slot := w.to("cuda", non_blocking=True), slot)
        columns = gpu.trace().columns
        times = dict(zip(columns["kind"], columns["duration_us"], strict=True))
    assert times["h2d"] / times["kernel"] == pytest.approx(ratio, rel=1e-4)
    with pytest.raises(ValueError, match="latency"):
        simgpu.A100.with_ratio(0.1, 4, 4)


def test_operation_times_can_be_given():
    with simgpu.session(simgpu.H200.with_op_time(mm=7_000)) as gpu:
        x = torch.ones(4, 4, device="cuda")
        x @ x
        gpu.machine.flush()
        assert [op.end - op.start for op in gpu.machine.ops if op.name == "mm"] == [7_000]


# trace and graph

def onload_program():
    w, x = pinned_ones(64, 64), torch.ones(64, 64, device="cuda")
    slots, side = [torch.empty(64, 64, device="cuda") for _ in range(2)], torch.cuda.Stream()
    loaded, free = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
    for layer in range(24):
        with torch.cuda.stream(side):
            side.wait_event(free[layer % 2])
            slots[layer % 2].copy_(w, non_blocking=True)
            loaded[layer % 2].record()
        torch.cuda.current_stream().wait_event(loaded[layer % 2])
        with torch.profiler.record_function(f"layer {layer}"):
            x = x @ slots[layer % 2]
        free[layer % 2].record()
    torch.cuda.synchronize()


def test_trace_saves_and_loads_equal(tmp_path):
    with simgpu.session(simgpu.H200) as gpu:
        onload_program()
        trace = gpu.trace()
    trace.save(tmp_path / "t.json.gz")
    again = Trace.load(tmp_path / "t.json.gz")
    first = trace.start_us
    for name, column in trace.columns.items():
        found, wanted = again.columns[name], column
        if name == "start_us":
            wanted = wanted - first
        assert all(f == pytest.approx(w) if isinstance(w, float) else f == w for f, w in zip(found, wanted, strict=True)), name
    assert trace.busy_us("h2d") > 0 and {"layer 3"} <= set(trace.annotations["name"])


def test_record_uses_the_active_device():
    with simgpu.session(simgpu.H200):
        x = torch.ones(64, 64, device="cuda")
        trace = record(lambda: x @ x)
        assert list(trace.columns["name"][trace.columns["kind"] == "kernel"]) == ["mm"]


def test_graph_and_retime():
    from utils.dag import critical_path

    profile = simgpu.H200.scaled(1 / 128).with_ratio(0.5, 64 * 64 * 4, 2 * 64**3)
    with simgpu.session(profile) as gpu:
        onload_program()
        graph = gpu.graph()
        busy_us = gpu.trace().busy_us("kernel")
    same = simgpu.retime(graph)
    assert same.makespan == pytest.approx(gpu.elapsed_ms * 1000)
    slow = simgpu.retime(gpu, copy_scale=20)
    gemms = [task for task, data in graph.nodes(data=True) if data["label"] == "mm"]
    copies = [data["duration"] for _, data in graph.nodes(data=True) if data["kind"] == "h2d"]
    assert len(gemms) == len(copies) == 24 and slow.makespan == pytest.approx(20 * sum(copies) + busy_us / 24, rel=0.01)
    assert critical_path(gpu.graph(host=False)).length == pytest.approx(copies[0] + busy_us, rel=0.01)
    with pytest.raises(ValueError, match="copy_scale"):
        simgpu.retime(graph, copy_scale=0)


def test_keep_none_has_no_history():
    with simgpu.session(simgpu.H200, keep="none") as gpu:
        torch.ones(3, device="cuda")
        for look in (gpu.trace, gpu.graph):
            with pytest.raises(RuntimeError, match='keep="all"'):
                look()
        assert gpu.machine.ops == [] and gpu.machine.host_spans == []
