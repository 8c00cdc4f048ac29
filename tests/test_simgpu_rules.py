"""The rules of the simulated device, one by one: sessions, time, streams."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from simulated import busy

from utils import simgpu

MIB = 1 << 20


# sessions

def everything_patched():
    return (
        {
            (module.__name__, name): value
            for module in (torch, torch.cuda, torch.cuda.memory, torch.cuda.streams, torch.cuda.nvtx, torch.cuda.graphs)
            for name, value in vars(module).items()
        }
        | {("record_function", name): value for name, value in vars(torch.autograd.profiler.record_function).items()}
        | {
            ("Thread", "run"): threading.Thread.run,
            ("mode", 0): len(torch.overrides._get_current_function_mode_stack()),
        }
    )


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
            for use in (
                lambda: x + 1,
                lambda: x.cpu(),
                stream.synchronize,
                event.record,
                lambda: torch.cuda.set_stream(stream),
            ):
                with pytest.raises(RuntimeError, match=r"A100.*T4"):
                    use()
        assert simgpu.active() is outer and (x + 1).tolist() == [2, 2]
    assert x.tolist() == [1, 1] and "cuda:0" in repr(x)  # still readable
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
    assert torch.cuda.Event().query() is True  # never recorded


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
    assert both == pytest.approx(2 * max(up, down), rel=0.02)  # each at half its rate
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
        with simgpu.session(
            replace(simgpu.H200, small_kernels_overlap=overlap, kernel_latency_ns=50_000), numerics="shapes"
        ) as gpu:
            xs = [torch.empty(side, side, device="cuda") for _ in range(2)]
            for x in xs:
                with torch.cuda.stream(torch.cuda.Stream()):
                    x @ x
            torch.cuda.synchronize()
            return gpu.elapsed_ms

    assert run(64, True) < 0.7 * run(64, False)
    assert run(8192, True) == pytest.approx(run(8192, False), rel=0.01)


@pytest.fixture
def timed():
    """A simulated H200 that computes no values: large products cost no real time."""
    with simgpu.session(simgpu.H200, numerics="shapes") as device:
        yield device


def test_priorities_decide_who_runs_next(timed):
    gpu = timed
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


@pytest.mark.parametrize("look", ["trace", "graph"])
def test_work_after_a_look_comes_after_all_that_the_look_ran(timed, look):
    """A trace or a graph runs what is queued while the host stands still; what follows must not run in the past."""
    gpu = timed
    x = torch.ones(2048, 2048, device="cuda")
    for _ in range(3):
        x @ x
        getattr(gpu, look)()
    torch.cuda.synchronize()
    spans = gpu.trace().columns
    starts, lengths = ([round(us * 1000) for us in spans[key]] for key in ("start_us", "duration_us"))
    products = [(start, start + length) for name, start, length in zip(spans["name"], starts, lengths, strict=True)
                if name == "mm"]
    assert len(products) == 3 and products[0][1] <= products[1][0] and products[1][1] <= products[2][0]
    assert round(simgpu.clock() * 1000) >= products[-1][1]


@pytest.mark.parametrize(("in_place", "like"), [
    (lambda a, b, c: c.addmm_(a, b), lambda a, b, c: torch.addmm(c, a, b)),
    (lambda a, b, c: c.view(2, 512, 2048).baddbmm_(a.view(2, 512, 2048), b.expand(2, 2048, 2048)),
     lambda a, b, c: torch.baddbmm(c.view(2, 512, 2048), a.view(2, 512, 2048), b.expand(2, 2048, 2048))),
    (lambda a, b, c: c[:512].addbmm_(a.view(2, 512, 2048), b.expand(2, 2048, 2048)),
     lambda a, b, c: torch.addbmm(c[:512], a.view(2, 512, 2048), b.expand(2, 2048, 2048))),
])
def test_a_product_in_place_takes_as_long_as_one_that_is_not(in_place, like):
    took = []
    for product in (in_place, like):
        with simgpu.session(simgpu.RTX_5060_LAPTOP, numerics="shapes") as gpu:
            a, b, c = (torch.empty(rows, 2048, device="cuda") for rows in (1024, 2048, 1024))
            product(a, b, c)
            took.append(gpu.trace().busy_us("kernel"))
    assert took[0] == took[1] > 2 * 1024 * 2048 * 2048 / simgpu.RTX_5060_LAPTOP.peak_flops("float32") * 1e6


def test_the_layout_of_pointwise_results_that_is_found_without_torch_is_torchs():
    from itertools import product

    from utils.simgpu.geometry import of
    from utils.simgpu.infer import _whole_shape

    sides = [torch.empty(shape, device="meta") for shape in ((), (3,), (1, 3), (2, 1), (2, 3), (1, 1), (4, 1, 3))]
    sides += [torch.empty(3, 2, device="meta").t(), sides[1][None], sides[1][:, None], sides[4][:, None]]
    sides += [torch.empty_strided((3, 1), (1, 0), device="meta"), torch.empty_strided((3, 1), (1, 7), device="meta")]
    known = 0
    for one, other in product(sides, sides):
        whole = _whole_shape([of(one), of(other)])
        if whole is not None:
            found, known = torch.add(one, other), known + 1
            assert found.shape == whole and found.stride() == torch.empty(whole, device="meta").stride()
    assert known > 60
