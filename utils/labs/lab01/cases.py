"""The graphs that lab 01 judges on. Every one of them is printed in its verdicts; none is hidden."""

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
    }


def resource_cases() -> dict[str, tuple[nx.DiGraph, dict[str, int]]]:
    """Graphs with resources for the bound: some limited by their path, some by one resource or its units."""
    copies = {"c0": "h2d", "c1": "h2d", "c2": "h2d", "k0": "compute", "k1": "compute", "k2": "compute"}
    layers = "c0-k0-k1-k2 c1-k1 c2-k2"
    wide = {"S": 1, "A": 4, "B": 4, "C": 4, "D": 4, "T": 1}
    return {
        "three layers, slow copies": (
            graph_of(dict(zip(copies, (6, 6, 6, 2, 2, 2), strict=True)), layers, copies), {"h2d": 1, "compute": 1}),
        "three layers, slow compute": (
            graph_of(dict(zip(copies, (2, 2, 2, 6, 6, 6), strict=True)), layers, copies), {"h2d": 1, "compute": 1}),
        "four tasks side by side, two workers": (
            graph_of(wide, "S-A-T S-B-T S-C-T S-D-T", dict.fromkeys(wide, "worker")), {"worker": 2}),
        "three kernels that take turns": (
            graph_of({"u": 1, "A": 5, "B": 4, "C": 3}, "u-A u-B u-C",
                     {"u": "h2d", "A": "compute", "B": "compute", "C": "compute"}), {"h2d": 1, "compute": 1}),
        "a chain beside an idle engine": (
            graph_of({"A": 3, "B": 3, "C": 3, "X": 2}, "A-B-C", {"A": "compute", "B": "compute", "C": "compute",
                                                                 "X": "h2d"}), {"compute": 2, "h2d": 2}),
        "two uploads on one engine, then two lanes": (
            graph_of({"u": 5, "v": 5, "A": 4, "B": 4, "w": 1}, "u-A-w v-B-w",
                     {"u": "h2d", "v": "h2d", "A": "compute", "B": "compute", "w": "d2h"}),
            {"h2d": 1, "compute": 2, "d2h": 1}),
    }


def show(path: object) -> str:
    """A path as people write it."""
    return "-".join(map(str, path)) if isinstance(path, (list, tuple)) else repr(path)
