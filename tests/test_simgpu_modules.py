"""The rules of the simulated device, one by one: moves, modules, profiles, traces and graphs."""

from __future__ import annotations

import copy

import pytest
import torch
from simulated import pinned_ones
from torch import nn

from utils import simgpu
from utils.trace import Trace, record

MIB = 1 << 20


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


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.sum().backward(),
        lambda x: x.resize_(9),
        lambda x: torch.cuda.ExternalStream(0),
        lambda x: torch.cuda.utilization(),
        lambda x: torch.autocast("cuda").__enter__(),
        lambda x: torch.cuda.make_graphed_callables(None, None),
        lambda x: torch.save(x, "/dev/null"),
        lambda x: torch.cuda.Event(interprocess=True),
    ],
)
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
        assert all(
            f == pytest.approx(w) if isinstance(w, float) else f == w for f, w in zip(found, wanted, strict=True)
        ), name
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
