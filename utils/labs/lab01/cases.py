"""The graphs that lab 01 judges on. A refusal prints the one that proves it, a pass names them all."""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx

from ...lessons import import_lesson


def graph_of(durations: Mapping[str, int], edges: str, resources: Mapping[str, str] | None = None) -> nx.DiGraph:
    """A graph from durations by task, chains such as ``"S-A-T S-B-T"``, and optional resources by task."""
    graph = nx.DiGraph()
    for task, duration in durations.items():
        graph.add_node(task, duration=duration, **({"resource": resources[task]} if resources else {}))
    for chain in edges.split():
        nx.add_path(graph, chain.split("-"))
    return graph


def on_engines(edges: str, **tasks: str) -> nx.DiGraph:
    """A graph from ``resource="A 3, B 4"``: the tasks of each resource with their durations."""
    parsed = {name: [entry.split() for entry in entries.split(",")] for name, entries in tasks.items()}
    durations = {task: int(time) for entries in parsed.values() for task, time in entries}
    resources = {task: name for name, entries in parsed.items() for task, _ in entries}
    return graph_of(durations, edges, resources)


def path_cases() -> dict[str, nx.DiGraph]:
    """Graphs for paths, slack and speed-ups: the lesson's, and one for each way in which a guess goes wrong."""
    return {
        "the lesson's graph": import_lesson("01_critical_path").article_graph(),
        "a detour of short tasks": graph_of(
            {"S": 1, "A": 1, "B": 1, "C": 1, "X": 9, "T": 1}, "S-A-B-C-T S-X-T"),
        "a tempting first step": graph_of(
            {"S": 1, "A": 5, "B": 1, "C": 3, "D": 6, "T": 1}, "S-A-B-T S-C-D-T"),
        "two equal paths": graph_of(
            {"S": 2, "A": 4, "B": 1, "C": 3, "E": 3, "T": 2}, "S-A-T S-B-C-T S-E-T"),
        "no common start or end": graph_of(
            {"P": 2, "Q": 3, "R": 1, "U": 7, "V": 4}, "P-Q R-U R-V P-V"),
        "a long task off the path": graph_of(
            {"S": 1, "L": 8, "A": 3, "B": 6, "C": 4, "M": 2, "T": 1}, "S-L-T S-A-B-C-T A-M-C"),
        "ties at both ends": graph_of(
            {"P": 2, "Q": 2, "A": 3, "B": 3, "M": 1, "X": 2, "Y": 2}, "P-A-M-X P-B-M-Y Q-A Q-B P-M"),
        "two long branches": graph_of({"S": 4, "X": 10, "Y": 9, "T": 1}, "S-X-T S-Y-T"),
        "an odd chain": graph_of({"B": 5, "A": 6}, "B-A"),
        "a shared tail": graph_of(
            {"S": 1, "B": 4, "A": 1, "L": 9, "C": 5, "T": 1}, "S-A-C-T S-L-T B-C A-T"),
        "a gain that runs out": graph_of({"A": 10, "C": 6, "B": 7}, "A-B C-B"),       # a quarter of B would save more
        "a gain that lasts": graph_of({"A": 10, "C": 7, "B": 8}, "A-B C-B"),          # three quarters of A would
    }


def resource_cases() -> dict[str, tuple[nx.DiGraph, dict[str, int]]]:
    """Graphs with resources for the bound: some limited by their path, some by one resource or its units."""
    layers = "c0-k0-k1-k2 c1-k1 c2-k2"
    return {
        "three layers, slow copies": (
            on_engines(layers, h2d="c0 6, c1 6, c2 6", compute="k0 2, k1 2, k2 2"), {"h2d": 1, "compute": 1}),
        "three layers, slow compute": (
            on_engines(layers, h2d="c0 2, c1 2, c2 2", compute="k0 6, k1 6, k2 6"), {"h2d": 1, "compute": 1}),
        "four tasks side by side, two workers": (
            on_engines("S-A-T S-B-T S-C-T S-D-T", worker="S 1, A 4, B 4, C 4, D 4, T 1"), {"worker": 2}),
        "three kernels that take turns": (
            on_engines("u-A u-B u-C", h2d="u 1", compute="A 5, B 4, C 3"), {"h2d": 1, "compute": 1}),
        "a chain beside an idle engine": (
            on_engines("A-B-C", compute="A 3, B 3, C 3", h2d="X 2"), {"compute": 2, "h2d": 2}),
        "two uploads on one engine, then two lanes": (
            on_engines("u-A-w v-B-w", h2d="u 5, v 5", compute="A 4, B 4", d2h="w 1"),
            {"h2d": 1, "compute": 2, "d2h": 1}),
        "two short, one long": (on_engines("", compute="a 2, b 2, x 4"), {"compute": 2}),
        "few copies, many kernels": (
            on_engines("u-A v-B", h2d="u 4, v 4", compute="A 3, B 3, C 3, D 3"), {"h2d": 1, "compute": 3}),
        "four kernels for two units": (
            on_engines("u-A", h2d="u 1", compute="A 5, B 5, C 5, D 4"), {"h2d": 1, "compute": 2}),
        "copies that nobody waits for": (
            on_engines("A-B", compute="A 5, B 5", h2d="c 3, d 3, e 3, f 3"), {"compute": 1, "h2d": 1}),
    }


def describe(graph: nx.DiGraph, resources: Mapping[str, int] | None = None) -> str:
    """A case in one sentence: tasks with durations, edges, units."""
    names = nx.get_node_attributes(graph, "resource") if resources else {}
    tasks = ", ".join(f"{task} {node['duration']}" + (f" on {names[task]}" if names else "")
                      for task, node in graph.nodes.items())
    edges = " ".join(f"{before}-{after}" for before, after in graph.edges) or "none"
    units = "; units: " + ", ".join(f"{name} {count}" for name, count in resources.items()) if resources else ""
    return f"The case: {tasks}; edges: {edges}{units}."


def show(path: object) -> str:
    """A path as people write it."""
    return "-".join(map(str, path)) if isinstance(path, (list, tuple)) else repr(path)
