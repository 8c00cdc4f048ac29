"""Judge of the double buffer as a task graph: which orders it guarantees, and what it costs."""

from __future__ import annotations

from typing import Any

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..verdict import Tick, Verdict

ENGINES = {"h2d": 1, "compute": 1}
SLOTS = 2
SETTINGS = [(layers, copy, compute) for layers in (1, 2, 3, 23, 24) for copy, compute in ((2, 20), (10, 10), (20, 2))]
DRAWN_LAYERS = 8   # a picture of more is no help
TICKS = ("correct", "race-free", "time")


def judge_double_buffer_graph(answer: Answer) -> Verdict:
    """Any graph on the given tasks that keeps both buffers safe at any speed and meets the cold bound."""
    advice: dict[str, None] = {}
    for layers, copy, compute in SETTINGS:
        on = f"{layers} layers, copy {copy}, compute {compute}"
        graph = call("double_buffer_graph", answer, layers, copy, compute, on=on)
        _judge_tasks(graph, layers, copy, compute, on)
        _judge_orders(graph, layers, on)
        _judge_time(graph, layers, copy, compute, on)
        advice.update(dict.fromkeys(_spare_edges(graph)))
    whys = ("every task, once", "no delay breaks an order", f"copy + (L-1)*max + compute, {len(SETTINGS)} settings")
    return Verdict("double_buffer_graph", [Tick(name, True, why) for name, why in zip(TICKS, whys, strict=True)],
                   advice=list(advice), tried="1, 2, 3, 23 and 24 layers, each with copy:compute 2:20, 10:10 and 20:2",
                   picture=timeline(dag.schedule(reference(6, 10, 7), ENGINES)))


def _judge_tasks(graph: Any, layers: int, copy: int, compute: int, on: str) -> None:
    if not isinstance(graph, nx.DiGraph):
        raise _refuse("correct", f"returned a {type(graph).__name__} for {on}", "Return the networkx.DiGraph.")
    wanted = {(kind, layer): (time, engine) for layer in range(layers)
              for kind, time, engine in (("copy", copy, "h2d"), ("gemm", compute, "compute"))}
    if odd := [task for task in graph if task not in wanted] + [task for task in wanted if task not in graph]:
        raise _refuse("correct", f"the tasks differ at {odd[0]!r}, {on}",
                      f"The tasks are ('copy', i) and ('gemm', i) for i from 0 to {layers - 1}.")
    for task, (time, engine) in wanted.items():
        node = graph.nodes[task]
        if (node.get("duration"), node.get("resource")) != (time, engine):
            raise _refuse("correct", f"{task!r} has {dict(node)}, {on}",
                          f"It should be duration={time}, resource={engine!r}.")
    try:
        dag.check_graph(graph)
    except dag.GraphError as error:
        raise _refuse("correct", f"it cannot run, {on}", str(error)) from None


def orders(layers: int) -> list[tuple[tuple[str, int], tuple[str, int], str]]:
    """Every order that two buffers need: (first, then, what breaks without it)."""
    needed = []
    for i in range(layers):
        needed.append((("copy", i), ("gemm", i), f"gemm {i} can read slot {i % SLOTS} before copy {i} has filled it"))
        if i + 1 < layers:
            needed.append((("gemm", i), ("gemm", i + 1), f"gemm {i + 1} can start before gemm {i} has made its input"))
        if i + SLOTS < layers:
            needed.append((("gemm", i), ("copy", i + SLOTS),
                           f"copy {i + SLOTS} can overwrite slot {i % SLOTS} while gemm {i} still reads it"))
    return needed


def _judge_orders(graph: nx.DiGraph, layers: int, on: str) -> None:
    for first, then, breaks in orders(layers):
        if not nx.has_path(graph, first, then):
            raise _witness(graph, first, then, breaks, on)


def _witness(graph: nx.DiGraph, first: tuple[str, int], then: tuple[str, int], breaks: str, on: str) -> Refused:
    """Hold `first` up until `then` is ready, which no edge forbids, and show the two in the wrong order."""
    held = nx.DiGraph()
    held.add_nodes_from((task, _labelled(task, graph)) for task in [then, *(task for task in graph if task != then)])
    held.add_edges_from(graph.edges)
    held.add_edges_from((task, first) for task in nx.ancestors(graph, then))
    plan = dag.schedule(held, ENGINES)
    a, b = plan.runs[first], plan.runs[then]
    verdict = Verdict("double_buffer_graph", _ticks("race-free", f"{breaks}, {on}"), says=(
        f"Nothing makes {_say(then)} wait for {_say(first)}: no edge, and no chain of edges. Hold {_say(first)} up "
        f"until {a.start:g}: it runs from {a.start:g} to {a.end:g}, but {_say(then)} starts at {b.start:g}.\n"
        f"Missing edge: graph.add_edge({first!r}, {then!r})"))
    if len(graph) <= 2 * DRAWN_LAYERS:
        verdict.picture = timeline(plan)
    return Refused(verdict)


def _judge_time(graph: nx.DiGraph, layers: int, copy: int, compute: int, on: str) -> None:
    target = copy + (layers - 1) * max(copy, compute) + compute
    plan = dag.schedule(graph, ENGINES)
    if plan.makespan == target:
        return
    for task in graph:
        graph.nodes[task].update(_labelled(task, graph))
    says = f"Bound {target}, actual {plan.makespan:g}, lost {plan.makespan - target:g}."
    if extra := _costly_edge(graph, layers):
        says += f" The edge {_say(extra[0])} → {_say(extra[1])} protects nothing: both could run at once."
    wanted = dag.schedule(reference(layers, copy, compute), ENGINES)
    verdict = Verdict("double_buffer_graph", _ticks("time", f"{plan.makespan:g} instead of {target}, {on}"), says=says)
    if layers <= DRAWN_LAYERS:
        verdict.picture = timeline({"yours": plan, "target": wanted})
    raise Refused(verdict)


def _labelled(task: tuple[str, int], graph: nx.DiGraph) -> dict[str, Any]:
    """A task's attributes with what a timeline shows of it."""
    return {**graph.nodes[task], "label": _say(task), "kind": "h2d" if task[0] == "copy" else "kernel"}


def _costly_edge(graph: nx.DiGraph, layers: int) -> tuple[Any, Any] | None:
    """An edge that no needed order implies."""
    needed = nx.transitive_closure_dag(reference(layers, 1, 1))
    return next((edge for edge in graph.edges if not needed.has_edge(*edge)), None)


def _spare_edges(graph: nx.DiGraph) -> list[str]:
    lean = nx.transitive_reduction(graph)
    spare = [edge for edge in graph.edges if not lean.has_edge(*edge)]
    return ["some edges are already implied by others; the graph is the same without them"] if spare else []


def reference(layers: int, copy: int, compute: int) -> nx.DiGraph:
    """The double buffer with every edge that it needs and no other, labelled for a timeline."""
    graph = nx.DiGraph()
    for layer in range(layers):
        graph.add_node(("copy", layer), duration=copy, resource="h2d")
        graph.add_node(("gemm", layer), duration=compute, resource="compute")
    for task in graph:
        graph.nodes[task].update(_labelled(task, graph))
    graph.add_edges_from((first, then) for first, then, _ in orders(layers))
    return graph


def _ticks(failed: str, why: str) -> list[Tick]:
    at = TICKS.index(failed)
    return [Tick(name, True if place < at else False if place == at else None, why if place == at else "")
            for place, name in enumerate(TICKS)]


def _say(task: tuple[str, int]) -> str:
    return f"{task[0]} {task[1]}"


def _refuse(tick: str, why: str, says: str) -> Refused:
    return Refused(Verdict("double_buffer_graph", _ticks(tick, why), says=says))
