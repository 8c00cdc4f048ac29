"""Judge of the double buffer as a task graph: which orders it guarantees, and what it costs."""

from __future__ import annotations

from typing import Any

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..values import same, shown
from ..verdict import Tick, Verdict

ENGINES = {"h2d": 1, "compute": 1}
SLOTS = 2
DRAWN = (6, 10, 7)
# small, large and small again: an answer that keeps state between calls is found out
SETTINGS = [(layers, *times) for layers in (3, 1, 24, 2, 23) for times in ((2, 20), (10, 10), (20, 2))] + [DRAWN]
DRAWN_LAYERS = 8   # a picture of more is no help
TICKS = ("correct", "race-free", "time")
Task = tuple[str, int]


def judge_double_buffer_graph(answer: Answer) -> Verdict:
    """Any graph on the given tasks that keeps both buffers safe at any speed and meets the cold bound."""
    advice: dict[str, None] = {}
    for layers, copy, compute in SETTINGS:
        on = f"{layers} layer{'' if layers == 1 else 's'}, copy {copy}, compute {compute}"
        graph = call("double_buffer_graph", answer, layers, copy, compute, on=on)
        _judge_tasks(graph, layers, copy, compute, on)
        graph = in_order(graph)
        _judge_orders(graph, layers, on)
        _judge_time(graph, layers, copy, compute, on)
        advice.update(dict.fromkeys(_spare_edges(graph)))
    whys = ("every task, once", "no delay breaks an order", f"copy + (L-1)*max + compute, {len(SETTINGS)} settings")
    yours = timeline(dag.schedule(graph, ENGINES), critical=False, title="Yours with 6 layers, copy 10, compute 7")
    return Verdict("double_buffer_graph", [Tick(name, True, why) for name, why in zip(TICKS, whys, strict=True)],
                   advice=list(advice), picture=yours,
                   tried="1, 2, 3, 23 and 24 layers, each with copy:compute 2:20, 10:10 and 20:2; 6 layers with 10:7")


def _judge_tasks(graph: Any, layers: int, copy: int, compute: int, on: str) -> None:
    if not isinstance(graph, nx.DiGraph) or graph.is_multigraph():
        raise _refuse("correct", f"returned a {type(graph).__name__}, {on}", "Return the networkx.DiGraph.")
    wanted = {(kind, layer): (time, engine) for layer in range(layers)
              for kind, time, engine in (("copy", copy, "h2d"), ("gemm", compute, "compute"))}
    if odd := [task for task in graph if task not in wanted] + [task for task in wanted if task not in graph]:
        raise _refuse("correct", f"the tasks differ at {shown(odd[0])}, {on}",
                      f"The tasks are ('copy', i) and ('gemm', i) for i from 0 to {layers - 1}.")
    for task, (time, engine) in wanted.items():
        node = graph.nodes[task]
        if not same(node.get("duration"), time) or node.get("resource") != engine:
            raise _refuse("correct", f"{_say(task)} is not as asked, {on}",
                          f"{task!r} should have duration={time}, resource={engine!r}.")
    try:
        dag.check_graph(graph)
    except dag.GraphError as error:
        raise _refuse("correct", f"it cannot run, {on}", str(error)) from None


def in_order(graph: nx.DiGraph) -> nx.DiGraph:
    """The same graph with its tasks in the order of the layers, in which an engine takes them, and labelled."""
    ordered = nx.DiGraph()
    for task in sorted(graph, key=lambda task: (task[1], task[0])):
        ordered.add_node(task, **{**graph.nodes[task], "label": _say(task), "kind": KINDS[task[0]]})
    ordered.add_edges_from(graph.edges)
    return ordered


KINDS = {"copy": "h2d", "gemm": "kernel"}


def orders(layers: int) -> list[tuple[Task, Task, str]]:
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


def reference(layers: int, copy: int, compute: int) -> nx.DiGraph:
    """The double buffer with every edge that it needs and no other, labelled for a timeline."""
    graph = nx.DiGraph()
    for layer in range(layers):
        graph.add_node(("copy", layer), duration=copy, resource="h2d")
        graph.add_node(("gemm", layer), duration=compute, resource="compute")
    graph.add_edges_from((first, then) for first, then, _ in orders(layers))
    return in_order(graph)


def _judge_orders(graph: nx.DiGraph, layers: int, on: str) -> None:
    for first, then, breaks in orders(layers):
        if not nx.has_path(graph, first, then):
            raise _witness(graph, first, then, breaks, layers, on)


def _witness(graph: nx.DiGraph, first: Task, then: Task, breaks: str, layers: int, on: str) -> Refused:
    """Show `then` starting before `first` has ended: everything else in its order, `first` held up or slow."""
    plan = wrong_order(graph, first, then, layers)
    a, b = plan.runs[first], plan.runs[then]
    slow = a.end - a.start > graph.nodes[first]["duration"]
    says = (f"Nothing makes {_say(then)} wait for {_say(first)}: no edge, and no chain of edges. "
            + (f"Let {_say(first)} take {a.end - a.start:g}. " if slow else "")
            + f"{_say(first)} runs from {a.start:g} to {a.end:g}, but {_say(then)} starts at {b.start:g}.\n"
            f"Missing edge: graph.add_edge({first!r}, {then!r})")
    verdict = Verdict("double_buffer_graph", _ticks("race-free", f"{breaks}, {on}"), says=says)
    if layers <= DRAWN_LAYERS:
        verdict.picture = timeline(plan, critical=[first, then], title=f"{_say(then)} does not wait for {_say(first)}")
    return Refused(verdict)


def wrong_order(graph: nx.DiGraph, first: Task, then: Task, layers: int) -> dag.Schedule:
    """A run that the graph allows, right in everything but that `then` starts before `first` ends."""
    held = graph.copy()
    for before, after, _ in orders(layers):   # all other orders kept, as far as they do not settle this one
        _add_unless(held, before, after, first, then)
    needed = nx.ancestors(held, then)
    same_engine = held.nodes[first]["resource"] == held.nodes[then]["resource"]
    for task in needed | {then}:   # what `then` waits for must not be stuck behind `first` on its engine
        if same_engine or held.nodes[task]["resource"] == held.nodes[first]["resource"]:
            _add_unless(held, task, first, first, then)
    while True:
        plan = dag.schedule(held, ENGINES)
        if plan.runs[then].start < plan.runs[first].end:
            return plan
        held.nodes[first]["duration"] *= 2


def _add_unless(graph: nx.DiGraph, before: Task, after: Task, first: Task, then: Task) -> None:
    """Add an edge, but not one that closes a cycle or makes `then` wait for `first`."""
    if before == after or nx.has_path(graph, after, before):
        return
    graph.add_edge(before, after)
    if nx.has_path(graph, first, then):
        graph.remove_edge(before, after)


def _judge_time(graph: nx.DiGraph, layers: int, copy: int, compute: int, on: str) -> None:
    target = copy + (layers - 1) * max(copy, compute) + compute
    plan = dag.schedule(graph, ENGINES)
    if same(plan.makespan, target):
        return
    says = f"Bound {target}, actual {plan.makespan:g}, lost {plan.makespan - target:g}. {_costly_edge(graph, layers)}"
    verdict = Verdict("double_buffer_graph", _ticks("time", f"{plan.makespan:g} instead of {target}, {on}"), says=says)
    if layers <= DRAWN_LAYERS:
        wanted = dag.schedule(reference(layers, copy, compute), ENGINES)
        verdict.picture = timeline({"yours": plan, "target": wanted}, critical=False)
    raise Refused(verdict)


def _costly_edge(graph: nx.DiGraph, layers: int) -> str:
    """Name the edge that protects nothing and whose removal gains most."""
    needed = nx.transitive_closure_dag(reference(layers, 1, 1))
    spare = [edge for edge in graph.edges if not needed.has_edge(*edge)]
    without = {edge: dag.schedule(nx.restricted_view(graph, [], [edge]), ENGINES).makespan for edge in spare}
    edge = min(spare, key=without.__getitem__)
    now = dag.schedule(graph, ENGINES).makespan
    if without[edge] < now:
        return (f"The edge {_say(edge[0])} → {_say(edge[1])} protects nothing, and without it the whole takes "
                f"{without[edge]:g}.")
    names = ", ".join(f"{_say(a)} → {_say(b)}" for a, b in spare[:3])
    return f"Some edges protect nothing and only together cost time, among them {names}."


def _spare_edges(graph: nx.DiGraph) -> list[str]:
    lean = nx.transitive_reduction(graph)
    spare = [edge for edge in graph.edges if not lean.has_edge(*edge)]
    return ["some edges are already implied by others; the graph is the same without them"] if spare else []


def _ticks(failed: str, why: str) -> list[Tick]:
    at = TICKS.index(failed)
    return [Tick(name, True if place < at else False if place == at else None, why if place == at else "")
            for place, name in enumerate(TICKS)]


def _say(task: Task) -> str:
    return f"{task[0]} {task[1]}"


def _refuse(tick: str, why: str, says: str) -> Refused:
    return Refused(Verdict("double_buffer_graph", _ticks(tick, why), says=says))
