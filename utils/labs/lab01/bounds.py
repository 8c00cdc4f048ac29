"""Judge of the bound: too low is refuted by a path or a load, too high by a schedule that beats it."""

from __future__ import annotations

import random
from typing import Any

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..values import TOLERANCE, number, same, shown
from ..verdict import Tick, Verdict
from .cases import describe, resource_cases, show

PUZZLE = "lower_bound"
ORDERS = 200   # shuffled orders tried for a short schedule; the graphs have at most six tasks
Case = tuple[nx.DiGraph, dict[str, int]]


def judge_lower_bound(answer: Answer) -> Verdict:
    """A bound that no schedule beats, and at least the critical path and the busiest resource's load."""
    cases, tighter = resource_cases(), []
    for on, (graph, resources) in cases.items():
        given = call(PUZZLE, answer, graph.copy(), dict(resources), on=on)
        bound = dag.lower_bound(graph, resources)
        if number(given) is None:
            raise _refuse(given, "Return one finite number: a time.", (graph, resources), on)
        _refute_low(given, bound, (graph, resources), on)
        _refute_high(given, bound, (graph, resources), on)
        if not same(given, max(bound.critical_path, *bound.loads.values())):
            tighter.append(on)
    advice = [f"yours is tighter than asked on: {'; '.join(tighter)}. No schedule found here beats it"]
    return Verdict(PUZZLE, [Tick("correct", True, f"neither too low nor too high, {len(cases)} graphs")],
                   advice=advice if tighter else [], tried="; ".join(cases))


def _refute_low(given: Any, bound: dag.Bound, case: Case, on: str) -> None:
    value = number(given) * (1 + TOLERANCE)
    if value < bound.critical_path:
        path = dag.critical_path(case[0])
        raise _refuse(given, f"{show(path.path)} alone takes {path.length}: more workers cannot help it.", case, on)
    for name, load in bound.loads.items():
        if value < load:
            count = case[1][name]
            units = "1 unit" if count == 1 else f"{count} units"
            raise _refuse(given, f"{name} alone has {load * count:g} to work off on {units}, which takes {load:g}, "
                                 "however clever the order.", case, on)


def _refute_high(given: Any, bound: dag.Bound, case: Case, on: str) -> None:
    best = shortest_found(*case)
    if number(given) * (1 - TOLERANCE) <= best.makespan:
        return
    refused = _refuse(given, f"A schedule that ends at {best.makespan:g} beats it, so it is no bound. "
                             f"{_guess(given, bound, case)}", case, on)
    refused.verdict.picture = timeline(best, title=f"A schedule that ends at {best.makespan:g}")
    raise refused


def _guess(given: Any, bound: dag.Bound, case: Case) -> str:
    """The usual way to arrive at a bound that is too high."""
    graph, resources = case
    if any(resources[name] > 1 and same(given, load * resources[name]) for name, load in bound.loads.items()):
        return "Several units share the load: divide by how many there are."
    if len(bound.loads) > 1 and same(given, sum(bound.loads.values())):
        return "Different resources work at the same time: their loads are not added up."
    if same(given, dag.schedule(graph, resources).makespan):
        return "Yours is the time of *one* schedule. A bound holds for every schedule, also for better ones."
    return "Is something added up that can happen at the same time?"


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


def _refuse(given: Any, says: str, case: Case, on: str) -> Refused:
    return Refused(Verdict(PUZZLE, [Tick("correct", False, f"{shown(given)}, on {on}")],
                           says=f"{says.rstrip()}\n{describe(*case)}"))
