"""utils.dag against brute force on small random graphs, and its errors."""

import itertools

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utils import dag

RESOURCES = {"h2d": 1, "compute": 2}


@st.composite
def graphs(draw, most=7):
    count = draw(st.integers(1, most))
    graph = nx.DiGraph()
    for task in draw(st.permutations(range(count))):   # the order of adding need not be topological
        graph.add_node(task, duration=draw(st.integers(0, 6)), resource=draw(st.sampled_from(["h2d", "compute"])))
    for edge in itertools.combinations(range(count), 2):
        if draw(st.booleans()):
            graph.add_edge(*edge)
    return graph


def all_paths(graph):
    def grow(path):
        yield path
        for after in graph.successors(path[-1]):
            yield from grow([*path, after])
    for task in graph:
        yield from grow([task])


def work(graph, path):
    return sum(graph.nodes[task]["duration"] for task in path)


def shortest_makespan(graph, units):
    """Try every order: some order, placed task by task, gives the shortest schedule."""
    best = None
    for order in nx.all_topological_sorts(graph):
        free = {name: [0] * count for name, count in units.items()}
        end = {}
        for task in order:
            lanes = free[graph.nodes[task]["resource"]]
            lanes.sort()
            start = max([lanes[0], *(end[before] for before in graph.predecessors(task))])
            lanes[0] = end[task] = start + graph.nodes[task]["duration"]
        best = min(best or max(end.values()), max(end.values()))
    return best


@given(graphs())
def test_critical_path_is_a_longest_path(graph):
    path, length = dag.critical_path(graph)
    assert length == max(work(graph, path) for path in all_paths(graph))
    assert work(graph, path) == length
    assert nx.is_path(graph, path) or len(path) == 1
    assert graph.in_degree(path[0]) == graph.out_degree(path[-1]) == 0


@given(graphs())
def test_slack_is_how_much_longer_a_task_may_take(graph):
    length = dag.critical_path(graph).length
    for task, slack in dag.slack(graph).items():
        grown = graph.copy()
        grown.nodes[task]["duration"] += slack
        assert dag.critical_path(grown).length == length
        grown.nodes[task]["duration"] += 1
        assert dag.critical_path(grown).length == length + 1


@given(graphs(), st.sampled_from([None, 1, 2, 3, RESOURCES]), st.booleans())
def test_schedule_respects_edges_units_and_durations(graph, resources, fifo):
    if fifo:   # queued in an order in which they can run
        graph = relaid(graph)
    plan = dag.schedule(graph, resources, fifo=fifo)
    assert set(plan.runs) == set(graph)
    assert plan.makespan == max(run.end for run in plan.runs.values())
    for before, after in graph.edges:
        assert plan.runs[before].end <= plan.runs[after].start
    for task, run in plan.runs.items():
        assert run.end - run.start == graph.nodes[task]["duration"]
        assert 0 <= run.unit < plan.resources[run.resource]
    for a, b in itertools.combinations(plan.runs.values(), 2):
        if (a.resource, a.unit) == (b.resource, b.unit):
            assert a.end <= b.start or b.end <= a.start
    if fifo:
        for name in plan.resources:
            starts = [plan.runs[task].start for task in graph if plan.runs[task].resource == name]
            assert starts == sorted(starts)


def relaid(graph):
    """The same graph with its tasks added in topological order."""
    ordered = nx.DiGraph()
    ordered.add_nodes_from((task, graph.nodes[task]) for task in nx.topological_sort(graph))
    ordered.add_edges_from(graph.edges)
    return ordered


@given(graphs())
def test_no_unit_rests_while_a_task_could_run(graph):
    plan = dag.schedule(graph, RESOURCES)
    for task, run in plan.runs.items():
        ready = max((plan.runs[before].end for before in graph.predecessors(task)), default=0)
        for moment in range(ready, run.start):
            busy = sum(r.resource == run.resource and r.start <= moment < r.end for r in plan.runs.values())
            assert busy == RESOURCES[run.resource], f"{task} waited at {moment} beside an idle unit"


@settings(max_examples=60)
@given(graphs(most=6))
def test_lower_bound_is_never_beaten(graph):
    bound = dag.lower_bound(graph, RESOURCES)
    best = shortest_makespan(graph, RESOURCES)
    assert bound.length <= best <= dag.schedule(graph, RESOURCES).makespan
    assert bound.length >= max(bound.critical_path, *bound.loads.values())


@given(graphs())
def test_one_worker_takes_the_serial_time_and_unlimited_the_critical_path(graph):
    assert dag.schedule(graph, 1).makespan == dag.serial_time(graph) == work(graph, list(graph))
    assert dag.schedule(graph).makespan == dag.critical_path(graph).length


def double_buffer(layers, copy, compute):
    graph = nx.DiGraph()
    for i in range(layers):
        graph.add_node(("copy", i), duration=copy, resource="h2d")
        graph.add_node(("gemm", i), duration=compute, resource="compute")
        graph.add_edge(("copy", i), ("gemm", i))
        graph.add_edges_from([(("gemm", i - 1), ("gemm", i))] if i else [])
        graph.add_edges_from([(("gemm", i - 2), ("copy", i))] if i > 1 else [])
    return graph


@given(st.integers(1, 24), st.integers(1, 50), st.integers(1, 50))
def test_double_buffer_meets_its_cold_bound(layers, copy, compute):
    graph = double_buffer(layers, copy, compute)
    plan = dag.schedule(graph, {"h2d": 1, "compute": 1}, fifo=True)
    bound = dag.lower_bound(graph, {"h2d": 1, "compute": 1})
    assert plan.makespan == bound.length == copy + (layers - 1) * max(copy, compute) + compute
    assert bound.loads == {"h2d": layers * copy, "compute": layers * compute}
    # the first copy is always exposed; when copies are the slower side, so is the rest of each of them
    assert dag.exposed(plan, "h2d", "compute") == copy + (layers - 1) * max(copy - compute, 0)
    assert dag.idle(plan) == {"h2d": plan.makespan - layers * copy, "compute": plan.makespan - layers * compute}


def test_ties_go_to_the_task_added_first():
    graph = nx.DiGraph()
    for task in "sbat":
        graph.add_node(task, duration=1)
    graph.add_edges_from([("s", "a"), ("s", "b"), ("a", "t"), ("b", "t")])
    assert dag.critical_path(graph).path == ("s", "b", "t")
    assert list(dag.schedule(graph, 1).runs) == ["s", "b", "a", "t"]


def test_table_lists_runs_in_order_of_start():
    table = dag.schedule(double_buffer(2, 3, 5), {"h2d": 1, "compute": 1}).table()
    assert table[["resource", "start", "end"]].values.tolist() == [
        ["h2d", 0, 3], ["h2d", 3, 6], ["compute", 3, 8], ["compute", 8, 13]]


def test_an_empty_graph_takes_no_time():
    empty = nx.DiGraph()
    assert dag.critical_path(empty) == ((), 0)
    assert dag.serial_time(empty) == dag.schedule(empty, 2).makespan == dag.lower_bound(empty, 2).length == 0


def test_ten_thousand_tasks():
    graph = nx.DiGraph()
    graph.add_nodes_from(range(10_000), duration=2)
    graph.add_edges_from((i, i + 100) for i in range(9_900))
    assert dag.critical_path(graph).length == 200
    assert dag.schedule(graph, 50).makespan == 400


ONE = {"a": {"duration": 1}}


@pytest.mark.parametrize(("nodes", "edges", "says"), [
    ({"a": {}}, [], "task 'a' has no duration"),
    ({"a": {"duration": -2}}, [], "has duration -2: a task cannot take less than no time"),
    ({"a": {"duration": float("nan")}}, [], "give a finite int or float"),
    ({"a": {"duration": float("inf")}}, [], "give a finite int or float"),
    ({"a": {"duration": "3"}}, [], "give a finite int or float"),
    ({"a": {"duration": True}}, [], "give a finite int or float"),
    ({"a": {"duration": 1}, "b": {"duration": 1}}, [("a", "b"), ("b", "a")], "cycle, a → b → a"),
    (ONE, [("a", "a")], "cycle, a → a"),
])
def test_unusable_graphs_are_refused(nodes, edges, says):
    graph = nx.DiGraph(edges)
    graph.add_nodes_from(nodes.items())
    for function in (dag.critical_path, dag.serial_time, dag.lower_bound, dag.schedule, dag.slack):
        with pytest.raises(dag.GraphError, match=says):
            function(graph)


@pytest.mark.parametrize(("resources", "says"), [
    (0, "'worker' has 0 units"), (2.5, "2.5 units"), (True, "True units"), ({"gpu": 0}, "'gpu' has 0 units"),
    ({"gpu": 1}, "needs resource 'cpu', which was not given"), ({"cpu": 1}, "task 'b' names no resource"),
])
def test_unusable_resources_are_refused(resources, says):
    graph = nx.DiGraph()
    graph.add_node("a", duration=1, resource="cpu")
    graph.add_node("b", duration=1)
    for function in (dag.lower_bound, dag.schedule):
        with pytest.raises(dag.GraphError, match=says):
            function(graph, resources)


def test_other_misuse_is_refused():
    graph = nx.DiGraph()
    graph.add_node("late", duration=1)
    graph.add_node("early", duration=1)
    graph.add_edge("early", "late")
    with pytest.raises(dag.GraphError, match=r"cannot go on: at the head stands 'late'"):
        dag.schedule(graph, 1, fifo=True)
    with pytest.raises(dag.GraphError, match=r"fifo names \['gpu'\]"):
        dag.schedule(graph, 1, fifo=["gpu"])
    with pytest.raises(dag.GraphError, match="no resource 'gpu'"):
        dag.exposed(dag.schedule(graph, 1), "gpu", "worker")
    with pytest.raises(dag.GraphError, match=r"networkx\.DiGraph, not Graph"):
        dag.critical_path(nx.Graph())
    with pytest.raises(dag.GraphError, match=r"not MultiDiGraph"):
        dag.schedule(nx.MultiDiGraph())


FLOATS = st.floats(0, 10, allow_nan=False).map(lambda value: value / 7)


@given(graphs(), st.data())
def test_floats_agree_between_path_schedule_and_slack(graph, data):
    for task in graph:
        graph.nodes[task]["duration"] = data.draw(FLOATS)
    path, length = dag.critical_path(graph)
    assert dag.schedule(graph).makespan == length   # to the last bit
    free = dag.slack(graph)
    assert all(free[task] == 0 for task in path)
    assert all(value >= 0 for value in free.values())


def test_numpy_durations_and_units_neither_overflow_nor_fail():
    graph = nx.DiGraph()
    graph.add_node("a", duration=np.int32(2_000_000_000), resource="gpu")
    graph.add_node("b", duration=np.int32(1_000_000_000), resource="gpu")
    graph.add_edge("a", "b")
    assert dag.critical_path(graph).length == dag.schedule(graph, {"gpu": np.int64(1)}).makespan == 3_000_000_000
    assert dag.lower_bound(graph, np.int64(2)).loads == {"worker": 1_500_000_000}


def test_a_queue_may_be_named_alone():
    graph = nx.DiGraph()
    graph.add_nodes_from("ab", duration=1, resource="h2d")
    assert list(dag.schedule(graph, {"h2d": 1}, fifo="h2d").runs) == ["a", "b"]
    with pytest.raises(dag.GraphError, match="fifo is 3"):
        dag.schedule(graph, {"h2d": 1}, fifo=3)


@pytest.mark.parametrize("name", ["", 0, ("h2d",)])
def test_resources_are_named_by_strings(name):
    graph = nx.DiGraph()
    graph.add_node("a", duration=1, resource=name)
    for function in (dag.lower_bound, dag.schedule):
        with pytest.raises(dag.GraphError, match="named by a string"):
            function(graph, {name: 1})


def test_what_is_no_graph_is_said_first():
    for function in (dag.lower_bound, dag.schedule, dag.critical_path, dag.slack, dag.serial_time):
        with pytest.raises(dag.GraphError, match=r"networkx\.DiGraph, not list"):
            function([1, 2])
    with pytest.raises(dag.GraphError, match="not Graph"):
        dag.schedule(nx.path_graph(3), {"x": 1})
