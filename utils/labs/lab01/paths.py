"""Judges of the first three puzzles: all critical paths, the slack of every task, which task to halve."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from numbers import Real
from typing import Any

import networkx as nx

from ... import dag
from ...timeline import dag_figure, timeline
from ..check import Answer, Refused, call
from ..verdict import Tick, Verdict
from .cases import path_cases, show

Task = Hashable


def judge_critical_paths(answer: Answer) -> Verdict:
    """Every longest path and its length, on every graph; any order of the paths, tuples or lists."""
    cases = path_cases()
    for on, graph in cases.items():
        _judge_paths(call("critical_paths", answer, graph.copy(), on=on), graph, on)
    return Verdict("critical_paths", [Tick("correct", True, f"every path and length, {len(cases)} graphs")],
                   tried="; ".join(cases), picture=dag_figure(cases["two equal paths"]))


def _judge_paths(given: Any, graph: nx.DiGraph, on: str) -> None:
    wanted, length = all_critical_paths(graph), dag.critical_path(graph).length
    if not (isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[0], (tuple, list, set))):
        raise _refuse("critical_paths", on, f"returned {given!r}",
                      "Return two things: the list of paths (each a list or tuple of tasks), and their length.", graph)
    paths, claimed = [tuple(path) if isinstance(path, (list, tuple)) else path for path in given[0]], given[1]
    for path in paths:
        _judge_one_path(path, graph, wanted, length, on)
    if missing := [path for path in wanted if path not in paths]:
        raise _refuse("critical_paths", on, f"{len(paths)} of {len(wanted)} paths",
                      f"{show(missing[0])} takes {length} too: a path that ties is just as critical. Speeding up only "
                      f"{show(paths[0]) if paths else 'the others'} would gain nothing.", graph)
    if len(set(paths)) < len(paths):
        raise _refuse("critical_paths", on, "a path is listed twice", "List every path once.", graph)
    if claimed != length:
        raise _refuse("critical_paths", on, f"length {claimed!r}",
                      f"The durations along {show(wanted[0])} add up to {length}.", graph)


def _judge_one_path(path: Any, graph: nx.DiGraph, wanted: list[tuple[Task, ...]], length: Any, on: str) -> None:
    if path in wanted:
        return
    if not isinstance(path, tuple) or not path or any(task not in graph for task in path):
        raise _refuse("critical_paths", on, f"{show(path)} is no path", "A path is a list of the graph's tasks.", graph)
    if gap := next((pair for pair in pairwise(path) if not graph.has_edge(*pair)), None):
        raise _refuse("critical_paths", on, f"{show(path)} is no path",
                      f"There is no edge {gap[0]} → {gap[1]}: nothing makes {gap[1]} wait for {gap[0]}.", graph)
    took = _work(graph, path)
    raise _refuse("critical_paths", on, f"{show(path)} takes {took}",
                  f"{show(wanted[0])} takes {length}, which is longer. {_guess(path, graph)}".rstrip(), graph)


def _guess(path: tuple[Task, ...], graph: nx.DiGraph) -> str:
    """The usual way to arrive at this wrong path, if it is one."""
    unit = graph.copy()
    nx.set_node_attributes(unit, 1, "duration")
    if len(path) == dag.critical_path(unit).length:
        return "Yours is the path with the most tasks; what counts is the sum of their durations."
    if path == _greedy(graph):
        return "Yours takes the longest next task at every step; a short task can lead to a long one."
    return "Does every task start after the *latest* of its predecessors?"


def _greedy(graph: nx.DiGraph) -> tuple[Task, ...]:
    choices, path = [task for task in graph if graph.in_degree(task) == 0], []
    while choices:
        path.append(max(choices, key=lambda task: graph.nodes[task]["duration"]))
        choices = list(graph.successors(path[-1]))
    return tuple(path)


def all_critical_paths(graph: nx.DiGraph) -> list[tuple[Task, ...]]:
    """Every longest path: from a first task to a last one, each starting the moment its critical predecessor ends."""
    heads, _ = dag.heads_and_tails(graph)
    free = dag.slack(graph)
    ends = {task: heads[task] + graph.nodes[task]["duration"] for task in graph}
    tight = nx.DiGraph()
    tight.add_nodes_from(task for task in graph if free[task] == 0)
    tight.add_edges_from((a, b) for a, b in graph.edges if a in tight and b in tight and ends[a] == heads[b])
    starts = [task for task in tight if graph.in_degree(task) == 0]
    return [path for start in starts for path in _walk(tight, (start,)) if graph.out_degree(path[-1]) == 0]


def _walk(graph: nx.DiGraph, path: tuple[Task, ...]) -> list[tuple[Task, ...]]:
    after = list(graph.successors(path[-1]))
    return [longer for task in after for longer in _walk(graph, (*path, task))] if after else [path]


def judge_slack(answer: Answer) -> Verdict:
    """Total slack of every task; a wrong value is refuted by delaying that task."""
    cases = path_cases()
    for on, graph in cases.items():
        given = call("slack", answer, graph.copy(), on=on)
        if not isinstance(given, dict) or set(given) != set(graph):
            raise _refuse("slack", on, f"returned {given!r}", "Return a dict with one number for every task.", graph)
        for task, true in dag.slack(graph).items():
            if not isinstance(given[task], Real) or given[task] != true:
                raise _refute_slack(given[task], task, true, graph, on)
    return Verdict("slack", [Tick("correct", True, f"every task of {len(cases)} graphs")], tried="; ".join(cases))


def _refute_slack(claimed: Any, task: Task, true: Any, graph: nx.DiGraph, on: str) -> Refused:
    length = dag.critical_path(graph).length
    by = true if not isinstance(claimed, Real) or claimed < true else claimed
    late = graph.copy()
    late.nodes[task]["duration"] += by
    now = dag.critical_path(late).length
    says = (f"Make {task} take {by} longer and the whole takes {now} instead of {length}."
            if now > length else f"Make {task} take {by} longer and the whole still takes {length}.")
    if claimed == _free_slack(graph, task):
        says += (" Yours is free slack: how far the task may slip without moving any other task. "
                 "Here others may move too, as long as the end does not.")
    picture = timeline({"as it is": dag.schedule(graph), f"{task} takes {by} longer": dag.schedule(late)})
    return Refused(Verdict("slack", [Tick("correct", False, f"slack of {task} on {on}: {claimed!r}")],
                           says=says, picture=picture))


def _free_slack(graph: nx.DiGraph, task: Task) -> Any:
    heads, _ = dag.heads_and_tails(graph)
    end = heads[task] + graph.nodes[task]["duration"]
    return min((heads[after] for after in graph.successors(task)), default=dag.critical_path(graph).length) - end


def judge_best_to_halve(answer: Answer) -> Verdict:
    """The task whose halving shortens the whole the most; any of several equal ones."""
    cases = path_cases()
    for on, graph in cases.items():
        given = call("best_to_halve", answer, graph.copy(), on=on)
        if not isinstance(given, Hashable) or given not in graph:
            raise _refuse("best_to_halve", on, f"returned {given!r}", "Return one of this graph's tasks.", graph)
        gains = {task: _length(graph) - _length(halved(graph, task)) for task in graph}
        if gains[given] < max(gains.values()):
            raise _refute_halving(given, gains, graph, on)
    return Verdict("best_to_halve", [Tick("correct", True, f"the largest gain, {len(cases)} graphs")],
                   tried="; ".join(cases))


def _refute_halving(given: Task, gains: dict[Task, Any], graph: nx.DiGraph, on: str) -> Refused:
    best = max(gains, key=gains.__getitem__)
    says = (f"Halving {given} saves {gains[given]:g} of {_length(graph):g}; halving {best} saves {gains[best]:g}.")
    if dag.slack(graph)[given] > 0:
        says += f" {given} has slack: the rest never waited for it."
    elif gains[given] < graph.nodes[given]["duration"] / 2:
        says += f" {given} is critical, but soon after it shrinks another path is the longest."
    picture = timeline({f"{given} halved": dag.schedule(halved(graph, given)),
                        f"{best} halved": dag.schedule(halved(graph, best))})
    return Refused(Verdict("best_to_halve", [Tick("correct", False, f"{given} on {on}")], says=says, picture=picture))


def halved(graph: nx.DiGraph, task: Task) -> nx.DiGraph:
    """The same graph with one task taking half as long."""
    changed = graph.copy()
    changed.nodes[task]["duration"] = changed.nodes[task]["duration"] / 2
    return changed


def _length(graph: nx.DiGraph) -> Any:
    return dag.critical_path(graph).length


def _work(graph: nx.DiGraph, path: tuple[Task, ...]) -> Any:
    return sum(graph.nodes[task]["duration"] for task in path)


def _refuse(puzzle: str, on: str, seen: str, says: str, graph: nx.DiGraph) -> Refused:
    return Refused(Verdict(puzzle, [Tick("correct", False, f"{seen} on {on}")], says=says, picture=dag_figure(graph)))
