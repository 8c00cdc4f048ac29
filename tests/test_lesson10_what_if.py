"""Lesson 10: what graphs of recordings predict, where they cannot, their pictures, and the numbers of the text."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest
from recorded_graphs import BUFFERS, RECORDED, ROOT, graph_of, length, lesson, ring_of, simulated, trace_of

from utils import dag, simgpu

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


def test_fixed_tasks_keep_their_time():
    graph = graph_of("h200x2_fsdp2_b512")
    first = lesson.first_launch(graph)
    plan = lesson.what_if(graph, fixed=[first], launches=3, delays=0)
    assert plan.runs[first].start == 0 and plan.runs[first].end == graph.nodes[first]["duration"] > 800
    before, after = lesson.work(graph, "launches"), lesson.work(plan.graph, "launches")
    assert after == pytest.approx(3 * before - 2 * plan.runs[first].end)
    assert lesson.first_launch(nx.DiGraph()) is None


def test_one_line_is_nearly_as_good_for_a_program_so_regular():
    errors = []
    for before, after in ((a, b) for a in BUFFERS for b in BUFFERS if a != b):
        graph, other = graph_of(BUFFERS[before]), graph_of(BUFFERS[after])
        load = max(lesson.work(graph, "copies"), lesson.work(other, "kernels"))
        line = graph.nodes[lesson.first_launch(graph)]["duration"] + load
        errors.append(round(100 * (line / length(trace_of(BUFFERS[after])) - 1), 1))
    assert (min(errors), max(errors)) == (-2.1, -0.3)


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
    dear = lesson.what_if_picture(parts, copy_rate=1, compute_rate=1, launch_cost=10, trace=0)
    assert dear.text.startswith("+0% time")                  # the profiler's start is not stretched


# ---- what the text says

def test_numbers_in_the_answers():
    ring, fsdp, small = (graph_of(f"h200x2_{name}") for name in ("ring_b4096", "fsdp2_b4096", "fsdp2_b512"))
    measured = json.loads((ROOT / "benchmarks/results/all_gather_h200x2.json").read_text(encoding="utf-8"))
    gather_us = 64 * 2**20 / next(row["gb_per_s"] for row in measured["copies"]["rows"] if row["mib"] == 128) / 1e3
    slots = lesson.long_ones(ring, "gather"), lesson.long_ones(ring, "kernel", 500), 2
    factor = 48 * gather_us / lesson.work(ring, "gathers")
    plan = lesson.what_if(lesson.with_slots(ring, *slots), gathers=factor, delays=0)
    assert round(plan.makespan / 1e3, 1) == 38.1 and lesson.broken(plan, *slots) == (0, 0)
    left = lesson.left_beside(ring)
    assert len(left) == 42 and (round(min(left)), round(max(left))) == (87, 91)
    wall = {row["tokens"]: row["ways"] for row in measured["mlp"]["rows"]}[512]
    assert wall["two slots, copy engines"]["ms"]["median"] == pytest.approx(24 * gather_us / 1e3, rel=0.01)
    assert round(wall["FSDP2"]["ms"]["median"]) == 16 and round(length(trace_of("h200x2_fsdp2_b512")) / 2e3) == 21
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
    first = lesson.first_launch(parts[0])
    assert round(parts[0].nodes[first]["duration"] / 1e3, 1) == 2.8
    times = [lesson.what_if(parts[0], fixed=[first], launches=cost).makespan for cost in (0, 10, 11, 20)]
    assert times[0] == times[1] < times[2] < times[3]
    launches, copies = (lesson.work(parts[0], word) for word in ("launches", "copies"))
    rest = launches - parts[0].nodes[first]["duration"]
    assert 16.5 * rest < copies < 17 * rest
