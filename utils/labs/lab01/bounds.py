"""Judge of the bound: too low is refuted by a path or a load, too high by a schedule that beats it."""

from __future__ import annotations

import random
from numbers import Real

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..verdict import Tick, Verdict
from .cases import resource_cases, show

ORDERS = 200   # shuffled orders tried for a short schedule; the graphs have at most six tasks


def judge_lower_bound(answer: Answer) -> Verdict:
    """A bound that no schedule beats, and at least the critical path and the busiest resource's load."""
    cases, tighter = resource_cases(), []
    for on, (graph, resources) in cases.items():
        given = call("lower_bound", answer, graph.copy(), dict(resources), on=on)
        if not isinstance(given, Real) or isinstance(given, bool):
            raise Refused(_verdict(on, given, "Return one number: a time."))
        bound = dag.lower_bound(graph, resources)
        simple = max(bound.critical_path, *bound.loads.values())
        _refute_low(given, graph, bound, resources, on)
        _refute_high(given, graph, resources, on)
        if given > simple:
            tighter.append(on)
    advice = [f"yours is tighter than asked on {', '.join(tighter)}: no schedule beats it there"] if tighter else []
    return Verdict("lower_bound", [Tick("correct", True, f"neither too low nor too high, {len(cases)} graphs")],
                   advice=advice, tried="; ".join(cases))


def _refute_low(given: Real, graph: nx.DiGraph, bound: dag.Bound, resources: dict[str, int], on: str) -> None:
    if given < bound.critical_path:
        path = dag.critical_path(graph)
        raise Refused(_verdict(on, given, f"{show(path.path)} alone takes {path.length}: more workers cannot help it."))
    for name, load in bound.loads.items():
        if given < load:
            total = load * resources[name]
            raise Refused(_verdict(on, given, f"{name} alone has {total:g} to work off on {resources[name]} unit(s), "
                                              f"which takes {load:g}, however clever the order."))


def _refute_high(given: Real, graph: nx.DiGraph, resources: dict[str, int], on: str) -> None:
    best = shortest_found(graph, resources)
    if given > best.makespan:
        verdict = _verdict(on, given, f"A schedule that ends at {best.makespan:g} beats it, so it is no bound. "
                                      "Different resources work at the same time: their loads are not added up.")
        verdict.picture = timeline(best)
        raise Refused(verdict)


def shortest_found(graph: nx.DiGraph, resources: dict[str, int]) -> dag.Schedule:
    """The shortest schedule among many orders of the same tasks (the same ones in every run)."""
    shuffle = random.Random(0).sample
    best = dag.schedule(graph, resources)
    for _ in range(ORDERS):
        shuffled = nx.DiGraph()
        shuffled.add_nodes_from((task, graph.nodes[task]) for task in shuffle(list(graph), len(graph)))
        shuffled.add_edges_from(graph.edges)
        best = min(best, dag.schedule(shuffled, resources), key=lambda plan: plan.makespan)
    return best


def _verdict(on: str, given: object, says: str) -> Verdict:
    shown = f"{given:g}" if isinstance(given, Real) else repr(given)
    return Verdict("lower_bound", [Tick("correct", False, f"{shown} on {on}")], says=says)
