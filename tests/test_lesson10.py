"""Lesson 10: task graphs of recorded traces, which edges they hold, and how much is explained."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from recorded_graphs import (
    BUFFERS,
    RECORDED,
    call,
    graph_of,
    handmade,
    length,
    lesson,
    ring_of,
    simulated,
    span,
    trace_of,
)

from utils import dag, simgpu


@pytest.mark.parametrize("tokens", [512, 4096, 12288, 16384])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_inferred_edges_of_simulated_traces_are_waits_that_the_program_has(tokens, slots):
    trace, truth = simulated(tokens, slots)
    right, inferred, there = lesson.right_edges(trace, truth)
    assert right == inferred > 0 and there >= inferred
    assert dag.schedule(lesson.graph_of(trace)).makespan == pytest.approx(length(trace), abs=0.01)
    assert lesson.delays(lesson.graph_of(trace))[1] == 0


def test_a_wrong_edge_would_be_counted_as_wrong():
    trace, truth = simulated(4096, 2)
    assert lesson.right_edges(trace, nx.create_empty_copy(truth))[0] == 0


@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_scheduled_again_takes_as_long(name):
    graph, trace = graph_of(name), trace_of(name)
    plan = dag.schedule(graph)
    assert plan.makespan == pytest.approx(length(trace), rel=1e-3)
    starts = trace.columns["start_us"] - trace.start_us
    device = [task for task in graph if not isinstance(task, tuple) and graph.nodes[task]["resource"] != "host"]
    assert len(device) == sum(lane not in ("host", "sync") for lane in trace.columns["lane"])
    assert max(abs(plan.runs[task].start - starts[task]) for task in device) < 50


def test_delays_that_nothing_explains_are_those_of_kernels_that_gather():
    long = {name: lesson.delays(graph_of(name))[1] for name in RECORDED}
    others = "h200_serial_b8192", "h200x2_copies_b4096", "h200x2_copies_b512"
    assert all(long[name] == 0 for name in (*BUFFERS.values(), *others))
    assert long["h200x2_ring_b4096"] > 25_000 and long["h200x2_fsdp2_b4096"] > 25_000
    assert 800 < long["h200_pageable_b8192"] < 1000


@pytest.mark.parametrize("name", [*BUFFERS.values(), "h200x2_copies_b4096", "h200x2_ring_b4096"])
def test_how_near_is_near_does_not_matter_between_20_and_50_us(name):
    wide, narrow = (lesson.graph_of(trace_of(name), near_us) for near_us in (50, 5))
    assert set(wide.edges) == set(graph_of(name).edges)
    assert sum(lesson.delays(narrow)) >= sum(lesson.delays(wide))


@pytest.mark.parametrize("after, edge", [(lesson.NEAR_US - 1, True), (lesson.NEAR_US + 1, False)])
def test_a_start_right_after_an_end_in_another_stream_is_an_edge_and_a_later_one_a_delay(after, edge):
    start = 100 + after
    graph = lesson.graph_of(handmade(call(0, 1, 1), call(1, 2, 2), span("h2d", 1, 2, 100, 1),
                                     span("kernel", 2, start, start + 50, 2)))
    copy, product = (next(task for task, data in graph.nodes(data=True) if data["kind"] == kind)
                     for kind in ("h2d", "kernel"))
    assert graph.graph["inferred"] == ([(copy, product)] if edge else [])
    assert graph.nodes["delay", product]["duration"] == (start - 100 if edge else start - 2)
    assert dag.schedule(graph).makespan == start + 50


@pytest.mark.parametrize("near_us, reason", [(lesson.NEAR_US, "kernel"), (5, "memset")])
def test_a_memset_is_the_reason_only_where_nothing_else_ended_near(near_us, reason):
    rows = [call(n, n + 1, n) for n in range(3)]
    graph = lesson.graph_of(handmade(*rows, span("kernel", 1, 3, 100, 0), span("memset", 1, 102, 104, 1),
                                     span("h2d", 2, 107, 200, 2)), near_us)
    [(before, copy)] = graph.graph["inferred"]
    assert graph.nodes[before]["kind"] == reason and graph.nodes[copy]["kind"] == "h2d"


def test_copies_of_the_recorded_double_buffer_wait_for_the_product_before_the_last():
    graph = graph_of(BUFFERS[16384])
    copies, products, _ = ring_of(graph)
    edges = [edge for edge in graph.graph["inferred"] if edge[1] in copies]
    assert len(edges) == 46 and set(edges) <= set(zip(products[:-2], copies[2:], strict=True))
    memsets = [data["end"] for _, data in graph.nodes(data=True) if data["kind"] == "memset"]
    starts = [graph.nodes[copy]["end"] - graph.nodes[copy]["duration"] for _, copy in edges]
    last = [(min(start - end for end in memsets if end <= start), start - graph.nodes[product]["end"])
            for start, (product, _) in zip(starts, edges, strict=True)]
    assert sum(memset < product for memset, product in last) == 33     # by the last end alone
    assert all(memset < 6.5 for memset, product in last if memset < product)


def test_streams_that_take_turns_on_an_engine_look_as_if_they_waited_for_each_other():
    with simgpu.session(simgpu.H200, numerics="shapes") as device:
        here = [torch.empty(8192, 8192, dtype=torch.bfloat16, pin_memory=True) for _ in range(6)]
        there = [torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(6)]
        streams = torch.cuda.Stream(), torch.cuda.Stream()
        for n in range(6):
            with torch.cuda.stream(streams[n % 2]):
                there[n].copy_(here[n], non_blocking=True)
        torch.cuda.synchronize()
        trace, truth = device.trace(), device.graph()
    graph = lesson.graph_of(trace)
    assert lesson.right_edges(trace, truth) == (0, 5, 0) and sum(lesson.delays(graph)) == 0
    lane, load = lesson.largest_load(graph)
    assert lane == "h2d" and load == pytest.approx(lesson.work(graph, "copies")) and load > 0.9 * length(trace)


def test_kernels_of_two_streams_may_run_side_by_side():
    kernels = span("kernel", 1, 2, 102, 1), span("kernel", 2, 2, 92, 2)
    graph = lesson.graph_of(handmade(call(0, 1, 1), call(1, 2, 2), *kernels))
    assert lesson.largest_load(graph) == ("compute 1", 100)


def test_a_launch_that_comes_late_needs_no_other_reason():
    graph = lesson.graph_of(handmade(call(0, 1, 1), span("h2d", 1, 2, 100, 1), call(90, 98, 2),
                                     span("kernel", 2, 103, 150, 2)))
    assert graph.graph["inferred"] == []
    assert lesson.what_if(graph, copies=5).makespan == 2 + 5 * 98
    assert lesson.what_if(graph, launches=2).makespan == 2 * 98 + 5 + 47


@pytest.mark.parametrize("name", ["ncclDevKernel_AllGather_RING_LL(args)", "ncclDevKernel_SendRecv(args)",
                                  "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(args)",
                                  "ncclKernel_ReduceScatter_RING_LL_Sum_bf16(args)",
                                  "Memcpy PtoP (Device -> Device)"])
def test_whatever_moves_between_gpus_takes_the_link(name):
    graph = lesson.graph_of(handmade(call(0, 1, 1), call(1, 2, 2), (name, "kernel", 1, 2, 98, 1),
                                     span("kernel", 2, 3, 80, 2)))
    assert lesson.work(graph, "gathers") == 98 and lesson.largest_load(graph) == ("link", 98)
    assert lesson.what_if(graph, gathers=0.5, kernels=0).makespan == 51


def test_two_streams_copy_side_by_side_unless_edges_make_them_take_turns():
    graph = lesson.graph_of(handmade(call(0, 1, 1), call(128, 129, 2), span("h2d", 1, 1, 101, 1),
                                     span("h2d", 2, 129, 229, 2)))
    first, second = lesson.long_ones(graph, "h2d")
    assert graph.graph["inferred"] == [] and lesson.what_if(graph, launches=0).makespan == 100
    graph.add_edge(first, ("delay", second))
    assert lesson.what_if(graph, launches=0).makespan == 200


def test_edges_inside_a_replayed_graph_are_not_seen():
    graph = lesson.graph_of(handmade(call(0, 5, 1, "cudaGraphLaunch"), span("kernel", 1, 5, 15, 1),
                                     span("kernel", 2, 16, 26, 1)))
    assert graph.graph["inferred"] == [] and dag.schedule(graph).makespan == 26
    assert lesson.what_if(graph, kernels=2).makespan == 36          # not 46: nothing says that the second waited


def test_a_replayed_graph_has_many_spans_and_one_launch():
    kernels = [span("kernel", 1, 5 + 10 * n, 15 + 10 * n, 1) for n in range(4)]
    graph = lesson.graph_of(handmade(call(0, 5, 1, "cudaGraphLaunch"), *kernels))
    assert dag.schedule(graph).makespan == 45 and lesson.what_if(graph, launches=0).makespan == 40


def test_the_host_goes_on_when_what_it_waited_for_is_done():
    graph = lesson.graph_of(handmade(call(0, 2, 1), span("kernel", 1, 2, 102, 1), call(115, 117, 2),
                                     call(2, 105, name="cudaStreamSynchronize"), span("kernel", 1, 117, 217, 2)))
    assert dag.schedule(graph).makespan == 217 and lesson.what_if(graph, kernels=2).makespan == 417
    assert lesson.what_if(lesson.without(graph, "kernel", "sync"), kernels=2).makespan == 402


def test_a_copy_from_pageable_memory_blocks_the_host():
    graph = lesson.graph_of(handmade(call(0, 102, 1, "cudaMemcpyAsync"), span("h2d", 1, 2, 103, 1), call(110, 112, 2),
                                     span("kernel", 2, 112, 150, 2)))
    assert dag.schedule(graph).makespan == 150 and lesson.what_if(graph, copies=2).makespan == 251
    assert lesson.what_if(lesson.without(graph, "h2d", "sync"), copies=2).makespan < 251


def test_spans_that_overlap_in_their_stream_are_cut():
    kernels = span("kernel", 1, 2, 50, 1), span("kernel", 1, 48, 90, 2)
    graph = lesson.graph_of(handmade(call(0, 1, 1), call(1, 2, 2), *kernels))
    assert dag.schedule(graph).makespan == 90


def test_a_trace_without_a_device_is_refused():
    with pytest.raises(ValueError, match="no span of a device"):
        lesson.graph_of(handmade(call(0, 1, 1)))


@pytest.mark.parametrize("name, waits", [("serial_b8192", 0), ("double_buffer_b4096", 96), ("double_buffer_b16384", 96),
                                         ("pageable_b8192", 96)])
def test_recordings_hold_the_calls_that_asked_for_waits_but_not_for_what(name, waits):
    columns = trace_of(f"h200_{name}").columns
    called = columns["name"] == "cudaStreamWaitEvent"
    assert called.sum() == waits and set(columns["lane"][called]) <= {"host"}
    assert len(graph_of(f"h200_{name}").graph["inferred"]) in (waits // 2, waits // 2 - 1, waits // 2 - 3)


def test_idle_shares_without_kernels_that_only_wait():
    idle = {name: lesson.idle_share(graph_of(f"h200x2_{name}")) for name in ("ring_b512", "ring_b4096", "copies_b512")}
    assert [round(100 * share) for share in idle.values()] == [73, 22, 55]
    assert trace_of("h200x2_ring_b512").idle_share("kernel") < 0.02
    nccl = "ncclDevKernel_AllGather_RING_LL", "kernel", 2, 2, 98, 2
    both = handmade(*(call(n, n + 1, n + 1) for n in range(3)), span("kernel", 1, 10, 30, 1), nccl,
                    span("kernel", 1, 80, 110, 3))
    assert lesson.idle_share(lesson.graph_of(both)) == 0.5 and both.idle_share("kernel") == 0
    with pytest.raises(ValueError, match="no task of kind 'd2h'"):
        lesson.idle_share(lesson.graph_of(both), "d2h")
