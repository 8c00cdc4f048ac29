"""Judges of slack and of which task to halve: every refusal changes one task and shows what that does."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..values import number, same, shown
from ..verdict import Tick, Verdict
from .cases import describe, path_cases

Task = Hashable


def judge_slack(answer: Answer) -> Verdict:
    """Total slack of every task; a wrong value is refuted by delaying that task."""
    cases = path_cases()
    for on, graph in cases.items():
        given = call("slack", answer, graph.copy(), on=on)
        if not isinstance(given, Mapping) or set(given) != set(graph):
            raise _refuse("slack", f"returned {shown(given)}, on {on}",
                          "Return a dict with one number for every task.", graph)
        for task, true in dag.slack(graph).items():
            if not same(given[task], true):
                raise _refute_slack(given, task, true, graph, on)
    return Verdict("slack", [Tick("correct", True, f"every task of {len(cases)} graphs")], tried="; ".join(cases))


def _refute_slack(given: Mapping[Task, Any], task: Task, true: Any, graph: nx.DiGraph, on: str) -> Refused:
    claimed, length = number(given[task]), dag.critical_path(graph).length
    seen = f"slack of {task}: {shown(given[task])}, on {on}"
    if claimed is None:
        return _refuse("slack", seen, "A slack is one finite number.", graph)
    if claimed < 0:
        return _refuse("slack", seen, "A slack is never negative: no path through a task is longer than the longest. "
                                      f"Is the duration of {task} counted twice?", graph)
    by = true if claimed < true else claimed
    late = graph.copy()
    late.nodes[task]["duration"] += by
    now = dag.critical_path(late).length
    says = (f"Make {task} take {shown(by)} longer and the whole takes {shown(now)} instead of {length}."
            if now > length else f"Make {task} take {by} longer and the whole still takes {length}.")
    if all(same(given[other], free_slack(graph, other)) for other in graph):
        says += (" Yours is free slack: how far a task may slip without moving any other task. "
                 "Here others may move too, as long as the end does not.")
    refused = _refuse("slack", seen, says, graph)
    if by <= 10 * length:   # a picture of more shows nothing
        refused.verdict.picture = timeline(
            {"as it is": dag.schedule(graph), f"{task} takes {shown(by)} longer": dag.schedule(late)})
    return refused


def free_slack(graph: nx.DiGraph, task: Task) -> Any:
    """How far a task may slip without moving any other task."""
    heads, _ = dag.heads_and_tails(graph)
    end = heads[task] + graph.nodes[task]["duration"]
    return min((heads[after] for after in graph.successors(task)), default=dag.critical_path(graph).length) - end


def judge_best_to_halve(answer: Answer) -> Verdict:
    """The task whose halving shortens the whole the most; any of several equal ones."""
    cases = path_cases()
    for on, graph in cases.items():
        given = call("best_to_halve", answer, graph.copy(), on=on)
        if not isinstance(given, Hashable) or given not in graph:
            raise _refuse("best_to_halve", f"returned {shown(given)}, on {on}", "Return one of this graph's tasks.",
                          graph)
        gains = {task: _length(graph) - _length(halved(graph, task)) for task in graph}
        if gains[given] < max(gains.values()):
            raise _refute_halving(given, gains, graph, on)
    return Verdict("best_to_halve", [Tick("correct", True, f"the largest gain, {len(cases)} graphs")],
                   tried="; ".join(cases))


def _refute_halving(given: Task, gains: dict[Task, Any], graph: nx.DiGraph, on: str) -> Refused:
    best = max(gains, key=gains.__getitem__)
    says = f"Halving {given} saves {gains[given]:g} of {_length(graph):g}; halving {best} saves {gains[best]:g}."
    if dag.slack(graph)[given] > 0:
        says += f" {given} has slack: the rest never waited for it."
    elif gains[given] < graph.nodes[given]["duration"] / 2:
        says += f" {given} is critical, but before it is half as long another path is the longest."
    refused = _refuse("best_to_halve", f"{given}, on {on}", says, graph)
    refused.verdict.picture = timeline({f"{given} halved": dag.schedule(halved(graph, given)),
                                        f"{best} halved": dag.schedule(halved(graph, best))})
    return refused


def halved(graph: nx.DiGraph, task: Task) -> nx.DiGraph:
    """The same graph with one task taking half as long."""
    changed = graph.copy()
    changed.nodes[task]["duration"] = changed.nodes[task]["duration"] / 2
    return changed


def _length(graph: nx.DiGraph) -> Any:
    return dag.critical_path(graph).length


def _refuse(puzzle: str, seen: str, says: str, graph: nx.DiGraph) -> Refused:
    return Refused(Verdict(puzzle, [Tick("correct", False, seen)], says=f"{says}\n{describe(graph)}"))
