"""Judge of the first puzzle: every critical path."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import pairwise
from typing import Any

import networkx as nx

from ... import dag
from ...timeline import dag_figure
from ..check import Answer, Refused, call
from ..values import same, shown
from ..verdict import Tick, Verdict
from .cases import path_cases, show

Task = Hashable
Path = tuple[Task, ...]
PUZZLE = "critical_paths"


def judge_critical_paths(answer: Answer) -> Verdict:
    """Every longest path and its length, on every graph; in any order, paths and their list as any sequence or set."""
    cases = path_cases()
    for on, graph in cases.items():
        _judge(call(PUZZLE, answer, graph.copy(), on=on), graph, on)
    return Verdict(PUZZLE, [Tick("correct", True, f"every path and length, {len(cases)} graphs")],
                   tried="; ".join(cases))


def _judge(given: Any, graph: nx.DiGraph, on: str) -> None:
    wanted, length = all_critical_paths(graph), dag.critical_path(graph).length
    paths, claimed = _read(given, graph, on)
    for path in paths:
        _judge_one_path(path, graph, wanted, length, on)
    if missing := [path for path in wanted if path not in paths]:
        says = f"{show(missing[0])} takes {length}."
        if paths:
            says = (f"{show(missing[0])} takes {length} too: a path that ties is just as critical. Making only "
                    f"{show(paths[0])} faster would gain nothing.")
        raise _refuse(on, f"{len(paths)} of {len(wanted)} paths", says, graph, missing[0])
    if len(set(paths)) < len(paths):
        raise _refuse(on, "a path is listed twice", "List every path once.", graph, wanted[0])
    if not same(claimed, length):
        raise _refuse(on, f"length {shown(claimed)}", f"The durations along {show(wanted[0])} add up to {length}.",
                      graph, wanted[0])


def _read(given: Any, graph: nx.DiGraph, on: str) -> tuple[list[Path], Any]:
    """The answer as a list of paths and a length."""
    two = isinstance(given, (tuple, list)) and len(given) == 2
    if two and _tasks(given[0], graph):
        raise _refuse(on, f"one path, {show(_tasks(given[0], graph))}",
                      "Return a *list* of paths, also when there is only one: put yours in a list.", graph, ())
    if not two or not isinstance(given[0], Iterable) or isinstance(given[0], str):
        raise _refuse(on, f"returned {shown(given)}",
                      "Return two things: the list of paths (each a list of tasks), and their length.", graph, ())
    paths = []
    for path in given[0]:
        if not (tasks := _tasks(path, graph)):
            raise _refuse(on, f"{shown(path)} is no path", "A path is a list of the graph's tasks.", graph, ())
        paths.append(tasks)
    return paths, given[1]


def _tasks(path: Any, graph: nx.DiGraph) -> Path:
    """A sequence of this graph's tasks as a tuple; empty when it is something else."""
    if isinstance(path, (str, bytes, dict, set, frozenset)) or not isinstance(path, Iterable):
        return ()
    tasks = tuple(path)
    return tasks if all(isinstance(task, Hashable) and task in graph for task in tasks) else ()


def _judge_one_path(path: Path, graph: nx.DiGraph, wanted: list[Path], length: Any, on: str) -> None:
    if path in wanted:
        return
    if gap := next((pair for pair in pairwise(path) if not graph.has_edge(*pair)), None):
        raise _refuse(on, f"{show(path)} is no path",
                      f"There is no edge {gap[0]} → {gap[1]}: nothing makes {gap[1]} wait for {gap[0]}.", graph, ())
    took = sum(graph.nodes[task]["duration"] for task in path)
    says = f"{show(wanted[0])} takes {length}, which is longer. {_guess(path, graph, wanted)}"
    if took == length:
        says = f"It could be longer by a task that takes no time; the whole path is {show(wanted[0])}."
    raise _refuse(on, f"{show(path)} takes {took}", says.rstrip(), graph, wanted[0])


def _guess(path: Path, graph: nx.DiGraph, wanted: list[Path]) -> str:
    """The usual way to arrive at this wrong path, if it is one."""
    unit = graph.copy()
    nx.set_node_attributes(unit, 1, "duration")
    if len(path) == dag.critical_path(unit).length > max(map(len, wanted)):
        return "Yours is the path with the most tasks; what counts is the sum of their durations."
    if path == _greedy(graph):
        return "Yours takes the longest next task at every step; a short task can lead to a long one."
    if any(set(path) < set(whole) for whole in wanted):
        return "Yours is a part of it: go on to a task that nothing waits for, and back to one that waits for nothing."
    return "Were all starts and all ends looked at, and does every task start after the *latest* of its predecessors?"


def _greedy(graph: nx.DiGraph) -> Path:
    choices, path = [task for task in graph if graph.in_degree(task) == 0], []
    while choices:
        path.append(max(choices, key=lambda task: graph.nodes[task]["duration"]))
        choices = list(graph.successors(path[-1]))
    return tuple(path)


def all_critical_paths(graph: nx.DiGraph) -> list[Path]:
    """Every longest path: from a first task to a last one, each starting the moment its critical predecessor ends."""
    heads, _ = dag.heads_and_tails(graph)
    free = dag.slack(graph)
    ends = {task: heads[task] + graph.nodes[task]["duration"] for task in graph}
    tight = nx.DiGraph()
    tight.add_nodes_from(task for task in graph if free[task] == 0)
    tight.add_edges_from((a, b) for a, b in graph.edges if a in tight and b in tight and ends[a] == heads[b])
    starts = [task for task in tight if graph.in_degree(task) == 0]
    return [path for start in starts for path in _walk(tight, (start,)) if graph.out_degree(path[-1]) == 0]


def _walk(graph: nx.DiGraph, path: Path) -> list[Path]:
    after = list(graph.successors(path[-1]))
    return [longer for task in after for longer in _walk(graph, (*path, task))] if after else [path]


def _refuse(on: str, seen: str, says: str, graph: nx.DiGraph, marked: Path) -> Refused:
    """A refusal with its case drawn, one path outlined."""
    return Refused(Verdict(PUZZLE, [Tick("correct", False, f"{seen}, on {on}")], says=says,
                           picture=dag_figure(graph, critical=marked or False)))


