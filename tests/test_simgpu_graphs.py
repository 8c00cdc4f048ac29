"""CUDA graphs on the simulated device: capture, replay, pools, races."""

from __future__ import annotations

import gc

import pytest
import torch

from utils import simgpu

D = 16


@pytest.fixture(params=["exact", "adversarial"])
def gpu(request):
    with simgpu.session(simgpu.H200, numerics=request.param) as device:
        yield device


def captured(body, **kwargs) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **kwargs):
        body()
    return graph


def test_capture_does_not_execute_and_replay_reads_inputs_then(gpu):
    x, out = torch.zeros(D, device="cuda"), torch.zeros(D, device="cuda")
    graph = captured(lambda: out.copy_(x + 1))
    torch.cuda.synchronize()
    assert out.tolist() == [0] * D
    for value in (3.0, 4.0):
        x.fill_(value)
        graph.replay()
        assert out.tolist() == [value + 1] * D
    assert gpu.hazards == []


def test_a_replay_is_one_launch(gpu):
    x = torch.zeros(D, device="cuda")

    def body():
        for _ in range(50):
            x.add_(1)

    graph = captured(body)
    before = simgpu.clock()
    graph.replay()
    assert simgpu.clock() - before == gpu.profile.launch_ns / 1000
    assert x.tolist() == [50] * D
    names = [name for name in gpu.trace().columns["name"] if "replay" in name and "node" in name]
    assert len(names) == 50 and names[0] == "graph 0, replay 0, node add_"


@pytest.mark.parametrize("join", [True, False])
def test_fork_and_join(gpu, join):
    side, x, y = torch.cuda.Stream(), torch.zeros(D, device="cuda"), torch.zeros(D, device="cuda")

    def body():
        main = torch.cuda.current_stream()
        x.add_(1)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y.copy_(x)
        if join:
            main.wait_stream(side)
        x.mul_(2) if join else None

    if not join:
        with pytest.raises(RuntimeError, match=r"unjoined work.*stream"):
            captured(body)
        return
    graph = captured(body)
    graph.replay()
    graph.replay()
    assert y.tolist() == [3] * D and x.tolist() == [6] * D and gpu.hazards == []


def test_branches_that_race_are_flagged_at_capture(gpu):
    side, x = torch.cuda.Stream(), torch.zeros(D, device="cuda")

    def body():
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            x.add_(1)
        x.mul_(2)
        main.wait_stream(side)

    captured(body)
    assert [(h.first.name, h.second.name) for h in gpu.hazards] == [("graph 0, node add_", "graph 0, node mul_")]


@pytest.mark.parametrize("wait", [True, False])
def test_what_stands_outside_must_be_ordered_with_the_replay(gpu, wait):
    x, out, side = torch.zeros(D, device="cuda"), torch.zeros(D, device="cuda"), torch.cuda.Stream()
    graph = captured(lambda: out.copy_(x * 2))
    host = torch.ones(D).pin_memory()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x.copy_(host, non_blocking=True)
    if wait:
        torch.cuda.current_stream().wait_stream(side)
    graph.replay()
    if wait:
        assert gpu.hazards == [] and out.tolist() == [2] * D
    else:
        hazard = gpu.hazards[0]
        assert (hazard.kind, hazard.second.name) == ("RAW", "graph 0, replay 0, node mul")
        assert "graph 0, replay 0, node mul" in str(hazard)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.cpu(),
        lambda x: x.item(),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.cuda.current_stream().synchronize(),
        lambda x: torch.cuda.current_stream().query(),
        lambda x: x.copy_(torch.ones(1)),
        lambda x: x.__setitem__(0, 5),
        lambda x: x.nonzero(),
        lambda x: torch.ones(1).cuda(),
    ],
)
def test_synchronising_during_capture_raises(gpu, call):
    x = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"), torch.cuda.graph(graph):
        call(x)
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    assert x.item() == 0 and not torch.cuda.is_current_stream_capturing()


def test_a_swallowed_error_invalidates_the_capture(gpu):
    def body():
        with pytest.raises(RuntimeError):
            torch.cuda.synchronize()

    with pytest.raises(RuntimeError, match="invalidated"):
        captured(body)


def test_waiting_for_an_outside_event_during_capture_raises(gpu):
    event = torch.cuda.Event()
    event.record()
    with pytest.raises(RuntimeError, match="outside the capture"):
        captured(lambda: event.wait())
    inside = torch.cuda.Event()
    captured(lambda: inside.record())
    for use in (inside.synchronize, inside.query, lambda: inside.wait(torch.cuda.default_stream())):
        with pytest.raises(RuntimeError, match="capture"):
            use()


def test_capture_needs_a_side_stream_and_a_fresh_graph(gpu):
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="preceding successful capture"):
        graph.pool()
    graph = captured(lambda: torch.zeros(1, device="cuda"))
    with pytest.raises(RuntimeError, match="already owns"), torch.cuda.graph(graph):
        pass


def test_memory_of_shared_and_unshared_pools(gpu):
    x = torch.zeros(4 << 20, dtype=torch.uint8, device="cuda")

    def body():
        y = x + 1
        del y

    keeps_seeds = captured(lambda: None)  # the first graph also makes small tensors for random seeds
    before = torch.cuda.memory_reserved()
    first = captured(body)
    one = torch.cuda.memory_reserved() - before
    second = captured(body, pool=first.pool())
    assert one > 0 and torch.cuda.memory_reserved() - before == one
    third = captured(body)
    assert torch.cuda.memory_reserved() - before == 2 * one
    del first, second, third, keeps_seeds
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before


@pytest.mark.parametrize("ordered", [True, False])
def test_graphs_that_share_a_pool_must_be_ordered(gpu, ordered):
    xs, outs = ([torch.full((D,), float(i), device="cuda") for i in (1, 2)] for _ in range(2))

    def body(i):
        def run():
            y = xs[i] * 10
            outs[i].copy_(y)

        return run

    first = captured(body(0))
    second = captured(body(1), pool=first.pool())
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    first.replay()
    if ordered:
        side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        second.replay()
    torch.cuda.synchronize()
    if ordered:
        assert gpu.hazards == [] and [o[0].item() for o in outs] == [10, 20]
    else:
        assert {h.kind for h in gpu.hazards} >= {"WAR"}


def test_pool_outputs_die_at_the_next_replay(gpu):
    x, kept = torch.zeros(D, device="cuda"), {}

    def body():
        kept["y"] = x + 1

    graph = captured(body)
    graph.replay()
    first = kept["y"].clone()
    x.fill_(5)
    graph.replay()
    assert first.tolist() == [1] * D and kept["y"].tolist() == [6] * D


@pytest.mark.parametrize("wait", [True, False])
def test_output_inside_a_pool_read_while_the_graph_is_replayed(gpu, wait):
    x, kept, side = torch.zeros(D, device="cuda"), {}, torch.cuda.Stream()

    def body():
        kept["y"] = x + 1

    graph = captured(body)
    graph.replay()
    home = torch.empty(D, pin_memory=True)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        home.copy_(kept["y"], non_blocking=True)
    if wait:
        torch.cuda.current_stream().wait_stream(side)
    x.fill_(5)
    graph.replay()
    assert [(h.kind, h.second.name) for h in gpu.hazards] == ([] if wait else [("WAR", "graph 0, replay 1, node add")])


@pytest.mark.parametrize("keep", [True, False])
def test_pinned_source_of_a_captured_copy(gpu, keep):
    x = torch.zeros(D, device="cuda")
    source = torch.ones(D).pin_memory()
    graph = captured(lambda: x.copy_(source, non_blocking=True))
    if not keep:
        del source
    graph.replay()
    torch.cuda.synchronize()
    if keep:
        assert gpu.hazards == [] and x.tolist() == [1] * D
        source.fill_(2)
        graph.replay()
        assert x.tolist() == [2] * D
        source.fill_(3)  # item() above synchronised
        assert gpu.hazards == []
    else:
        assert [h.second.name for h in gpu.hazards] == [
            "graph 0, replay 0, node copy_"
        ] and "keep the pinned tensor" in str(gpu.hazards[0])
        assert x.isnan().all().item()


def test_captured_download_is_a_pending_access_after_each_replay(gpu):
    x, home = torch.ones(D, device="cuda"), torch.zeros(D, pin_memory=True)
    graph = captured(lambda: home.copy_(x, non_blocking=True))
    assert home.sum() == 0 and gpu.hazards == []
    graph.replay()
    home.sum()
    assert [(h.kind, h.first.name) for h in gpu.hazards] == [("RAW", "graph 0, replay 0, node copy_")]
    torch.cuda.synchronize()
    assert home.sum() == D


def test_random_numbers_are_new_in_each_replay(gpu):
    out = torch.zeros(D, device="cuda")
    graph = captured(lambda: out.copy_(torch.randn(D, device="cuda")))
    seen = set()
    for _ in range(3):
        graph.replay()
        seen.add(out[0].item())
    assert len(seen) == 3


def test_reset_and_reuse(gpu):
    x = torch.zeros(D, device="cuda")
    graph = captured(lambda: x.add_(1))
    graph.reset()
    with pytest.raises(RuntimeError, match="preceding successful capture"):
        graph.replay()
    with torch.cuda.graph(graph):
        x.add_(2)
    graph.replay()
    assert x.tolist() == [2] * D
