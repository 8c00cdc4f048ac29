"""Lesson 10: task graphs of recorded traces, what they predict, and where they cannot."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import networkx as nx
import pytest
import torch

from utils import dag, simgpu
from utils.lessons import import_lesson
from utils.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
lesson, onload = import_lesson("10_real_systems"), import_lesson("04_double_buffered_onload")
RECORDED = sorted(path.name.removesuffix(".json.gz") for path in (ROOT / "traces").glob("*.json.gz"))
BUFFERS = {rows: f"h200_double_buffer_b{rows}" for rows in (4096, 8192, 16384)}


@cache
def trace_of(name):
    return Trace.load(ROOT / "traces" / f"{name}.json.gz")


@cache
def graph_of(name):
    return lesson.graph_of(trace_of(name))


def length(trace):
    return trace.stop_us - trace.start_us


def simulated(tokens, slots, gpu=simgpu.H200, layers=8):
    """(trace, true graph) of two calls of a ring on the simulated device."""
    with simgpu.session(gpu, numerics="shapes") as device, torch.inference_mode():
        weights = [torch.empty(8192, 8192, dtype=torch.bfloat16, pin_memory=True)] * layers
        model = onload.RingMLP(weights, slots)
        x = torch.empty(tokens, 8192, dtype=torch.bfloat16, device="cuda")
        for _ in range(2):
            model(x)
        torch.cuda.synchronize()
        return device.trace(), device.graph()


def ring_of(graph, slots=2):
    return lesson.long_ones(graph, "h2d"), lesson.long_ones(graph, "kernel"), slots


def call(start, end, number=-1, name="launch"):
    return name, "host", -1, start, end - start, number


def span(kind, stream, start, end, number):
    return kind, kind, stream, start, end - start, number


def handmade(*rows):
    names = ("name", "kind", "stream", "start_us", "duration_us", "correlation")
    return Trace.from_columns(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


# ---- the graph

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


# ---- what if

@pytest.mark.parametrize("word", ["copies", "kernels", "gathers", "launches", "delays"])
@pytest.mark.parametrize("name", [BUFFERS[4096], "h200_pageable_b8192", "h200x2_ring_b4096", "h200x2_fsdp2_b512"])
def test_more_of_anything_never_takes_less_time(name, word):
    times = [lesson.what_if(graph_of(name), **{word: factor}).makespan for factor in (0, 0.5, 1, 2, 8)]
    assert times == sorted(times) and times[2] == pytest.approx(dag.critical_path(graph_of(name)).length)


@pytest.mark.parametrize("tokens", [2048, 4096, 16384])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("factor", [0.25, 0.5, 3])
def test_it_predicts_the_simulated_device_with_another_link(tokens, slots, factor):
    graph = lesson.graph_of(simulated(tokens, slots)[0])
    gpu = simgpu.H200
    latency = round(gpu.copy_latency_ns * factor)
    other = replace(gpu, h2d_bytes_per_s=gpu.h2d_bytes_per_s / factor, copy_latency_ns=latency)
    actual, ring = length(simulated(tokens, slots, other)[0]), ring_of(graph, slots)
    plan = lesson.what_if(lesson.with_slots(graph, *ring), copies=factor)
    assert plan.makespan == pytest.approx(actual, rel=2e-3) and lesson.broken(plan, *ring) == (0, 0)


@pytest.mark.parametrize("tokens, factor", [(4096, 4), (16384, 0.25), (12288, 0.5), (12288, 2)])
def test_it_predicts_the_simulated_device_with_other_products(tokens, factor):
    trace = simulated(tokens, 2)[0]
    graph = lesson.graph_of(trace)
    one = round(1000 * max(trace.columns["duration_us"][trace.columns["kind"] == "kernel"]) * factor)
    actual = length(simulated(tokens, 2, simgpu.H200.with_op_time(mm=one))[0])
    plan = lesson.what_if(lesson.with_slots(graph, *ring_of(graph)), kernels=factor)
    assert plan.makespan == pytest.approx(actual, rel=2e-3) and lesson.broken(plan, *ring_of(graph)) == (0, 0)


@pytest.mark.parametrize("before, after", [(a, b) for a in BUFFERS for b in BUFFERS if a != b])
def test_it_predicts_other_recordings(before, after):
    graph, other = graph_of(BUFFERS[before]), graph_of(BUFFERS[after])
    factor, ring = lesson.work(other, "kernels") / lesson.work(graph, "kernels"), ring_of(graph)
    for each, whole in ((graph, False), (lesson.with_slots(graph, *ring), True)):
        plan = lesson.what_if(each, kernels=factor)
        assert plan.makespan == pytest.approx(length(trace_of(BUFFERS[after])), rel=0.01)
        assert not whole or lesson.broken(plan, *ring) == (0, 0)


def test_a_plan_without_the_rings_waits_breaks_them():
    graph, ring = graph_of(BUFFERS[4096]), ring_of(graph_of(BUFFERS[4096]))
    assert lesson.broken(lesson.what_if(graph, kernels=4.75), *ring) == (0, 46)
    graph, ring = graph_of(BUFFERS[16384]), ring_of(graph_of(BUFFERS[16384]))
    assert lesson.broken(lesson.what_if(graph, kernels=0.21), *ring)[0] == 47


def test_pinned_memory_is_an_edge_less_and_no_factor():
    graph, recorded = graph_of("h200_pageable_b8192"), length(trace_of(BUFFERS[8192]))
    factor = lesson.work(graph_of(BUFFERS[8192]), "copies") / lesson.work(graph, "copies")
    assert lesson.what_if(graph, copies=factor).makespan > 1.5 * recorded
    free = lesson.without(graph, "h2d", "sync")
    assert lesson.what_if(free, copies=factor).makespan == pytest.approx(recorded, rel=0.02)


@pytest.mark.parametrize("factors, message", [({"products": 2}, "copies, kernels"), ({"copies": -1}, "from 0 up"),
                                              ({"kernels": math.nan}, "from 0 up"), ({"delays": math.inf}, "0 up")])
def test_wrong_factors_are_refused(factors, message):
    with pytest.raises(ValueError, match=message):
        lesson.what_if(graph_of(BUFFERS[4096]), **factors)


def test_what_if_leaves_its_graph_alone():
    graph = lesson.graph_of(trace_of(BUFFERS[4096]))
    before = {task: dict(data) for task, data in graph.nodes(data=True)}
    lesson.what_if(graph, copies=0, delays=0)
    lesson.with_slots(graph, *ring_of(graph))
    lesson.without(graph, "kernel", "h2d")
    assert before == dict(graph.nodes(data=True)) and set(graph.edges) == set(graph_of(BUFFERS[4096]).edges)


# ---- pictures

@pytest.mark.parametrize("name", RECORDED)
def test_what_is_shown_fits_its_lanes(name):
    plan = lesson.shown(dag.schedule(graph_of(name)))
    rows = {}
    for run in plan.runs.values():
        rows.setdefault((run.resource, run.unit), []).append(run)
        assert run.unit < plan.resources[run.resource]
        assert plan.graph.nodes[run.task]["kind"] != "delay" or run.end - run.start > lesson.NEAR_US
    for runs in rows.values():
        assert all(one.end <= two.start + 1e-6 for one, two in pairwise(runs))


def test_a_part_depends_on_nothing_outside():
    graph = graph_of("h200x2_ring_b4096")
    part = lesson.part(graph, 20_000)
    assert 0 < len(part) < len(graph) and all(set(graph.predecessors(task)) <= set(part) for task in part)
    assert all(data["end"] <= 20_000 for _, data in part.nodes(data=True))


def test_the_sliders_picture_says_what_changed():
    parts = [lesson.part(graph_of(BUFFERS[4096]), 20_000)]
    same = lesson.what_if_picture(parts, copy_rate=1, compute_rate=1, launch_cost=1, trace=0)
    faster = lesson.what_if_picture(parts, copy_rate=2, compute_rate=1, launch_cost=1, trace=0)
    assert same.text.startswith("+0% time; critical path: h2d") and faster.text.startswith("-43% time")


# ---- what the text says

def test_numbers_in_the_answers():
    ring, fsdp, small = (graph_of(f"h200x2_{name}") for name in ("ring_b4096", "fsdp2_b4096", "fsdp2_b512"))
    measured = json.loads((ROOT / "benchmarks/results/all_gather_h200x2.json").read_text(encoding="utf-8"))
    gather_us = 64 * 2**20 / next(row["gb_per_s"] for row in measured["copies"]["rows"] if row["mib"] == 128) / 1e3
    slots = lesson.long_ones(ring, "gather"), lesson.long_ones(ring, "kernel", 500), 2
    factor = 48 * gather_us / lesson.work(ring, "gathers")
    plan = lesson.what_if(lesson.with_slots(ring, *slots), gathers=factor, delays=0)
    assert round(plan.makespan / 1e3, 1) == 38.1 and lesson.broken(plan, *slots) == (0, 0)
    path = lesson.by_lane(ring, lesson.critical(ring))
    assert (round(100 * path["unexplained"] / path.total()), round(100 * path["link"] / path.total())) == (59, 34)
    assert round(lesson.what_if(fsdp, gathers=0.5, delays=0).makespan / 1e3, 1) == 45.3
    assert round(lesson.what_if(fsdp, kernels=719 / 829, gathers=0.5, delays=0).makespan / 1e3, 1) == 39.6
    assert round(lesson.what_if(small, launches=0.5).makespan / 1e3, 1) == 21.7
    assert lesson.largest_load(ring)[0] == "compute" and lesson.largest_load(small)[0] == "host"


def test_numbers_in_the_sliders_answers():
    parts = [lesson.part(graph_of(name), 20_000) for name in (BUFFERS[4096], "h200_serial_b8192", "h200x2_ring_b4096")]

    def ms(which, **factors):
        return round(lesson.what_if(parts[which], **factors).makespan / 1e3, 1)

    def change(which, **factors):
        before, after = lesson.what_if(parts[which]), lesson.what_if(parts[which], **factors)
        return round(100 * (after.makespan / before.makespan - 1))

    assert (ms(0), ms(0, copies=1 / 3.5), ms(0, copies=1 / 7)) == (19.9, 7.7, 7.4)
    assert (change(1, copies=0.5), change(1, kernels=0.5), change(1, copies=0.5, kernels=0.5)) == (-27, -15, -42)
    assert (change(0, copies=0.5), change(0, kernels=0.5)) == (-43, 0)
    assert ms(2, gathers=1 / 8) == 16.5
    loads = [lesson.largest_load(lesson.what_if(parts[0], launches=cost).graph)[0] for cost in (4, 4.5)]
    assert loads == ["h2d", "host"]
