"""Lab 01: every check refuses the stub, passes the solution, and refuses each wrong answer for the right reason."""

import functools
import itertools
import random
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType

import networkx as nx
import numpy as np
import pytest

from utils import dag
from utils.labs.lab01 import buffers, check
from utils.labs.lab01.cases import path_cases, resource_cases
from utils.labs.lab01.paths import all_critical_paths
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/01_critical_path")
PUZZLES = list(check.puzzles)


def stub(puzzle):
    def unsolved(*_):
        raise NotImplementedError()
    unsolved.__name__ = puzzle
    return unsolved


def named(puzzle, function):
    function.__name__ = puzzle
    return function


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_stub_is_not_done_yet(puzzle):
    verdict = check.judge(stub(puzzle))
    assert verdict.pending and not verdict.passed
    assert f"{puzzle}: not done yet" in str(verdict)


@pytest.mark.parametrize("puzzle", PUZZLES)
def test_solution_passes(puzzle):
    verdict = check.judge(getattr(SOLUTION, puzzle))
    assert verdict.passed, str(verdict)
    assert verdict.tried and not verdict.advice
    assert check.passed(getattr(SOLUTION, puzzle))


# --- wrong answers -------------------------------------------------------------------------------------------------

def finishes(graph, duration=None):
    finish = {}
    for task in nx.topological_sort(graph):
        start = max((finish[before] for before in graph.predecessors(task)), default=0)
        finish[task] = start + (duration or graph.nodes.data("duration"))[task]
    return finish


def most_tasks(graph):
    path = nx.dag_longest_path(graph, weight="none", default_weight=1)
    return [path], sum(graph.nodes[task]["duration"] for task in path)


def greedy(graph):
    choices, path = [task for task in graph if graph.in_degree(task) == 0], []
    while choices:
        path.append(max(choices, key=lambda task: graph.nodes[task]["duration"]))
        choices = list(graph.successors(path[-1]))
    return [path], sum(graph.nodes[task]["duration"] for task in path)


def one_of_several(graph):
    path, length = dag.critical_path(graph)
    return [list(path)], length


def all_paths_of_the_length_by_tasks(graph):
    paths, _ = SOLUTION.critical_paths(graph)
    return paths, len(paths[0])


def critical_tasks_in_a_row(graph):
    free = dag.slack(graph)
    return [[task for task in nx.topological_sort(graph) if free[task] == 0]], dag.critical_path(graph).length


def without_the_last_task(graph):
    paths, length = SOLUTION.critical_paths(graph)
    return [path[:-1] for path in paths], length


def edge_weights(graph):   # counts each task's duration on its incoming edges and so forgets the first task
    weighted = graph.copy()
    for before, after in graph.edges:
        weighted.edges[before, after]["w"] = graph.nodes[after]["duration"]
    path = nx.dag_longest_path(weighted, weight="w")
    return [path], nx.path_weight(weighted, path, "w")


def same_path_twice(graph):
    paths, length = SOLUTION.critical_paths(graph)
    return [*paths, paths[0]], length


def length_only(graph):
    return dag.critical_path(graph).length


def tasks_that_are_not_there(graph):
    return [["start", "end"]], 16


def nothing(graph):
    pass


def raises(graph):
    return graph.nodes["nope"]


def free_slack(graph):
    finish = finishes(graph)
    start = {task: finish[task] - graph.nodes[task]["duration"] for task in graph}
    return {task: min((start[after] for after in graph.successors(task)), default=max(finish.values())) - finish[task]
            for task in graph}


def slack_without_own_duration(graph):
    return {task: value + graph.nodes[task]["duration"] for task, value in dag.slack(graph).items()}


def slack_of_critical_only(graph):
    return {task: 0 for task in graph}


def slack_to_the_makespan(graph):   # forgets that what follows needs time too
    finish = finishes(graph)
    return {task: max(finish.values()) - finish[task] for task in graph}


def slack_missing_tasks(graph):
    return {task: value for task, value in dag.slack(graph).items() if value}


def slack_as_text(graph):
    return {task: str(value) for task, value in dag.slack(graph).items()}


def slack_by_edge_count(graph):
    unit = graph.copy()
    nx.set_node_attributes(unit, 1, "duration")
    return dag.slack(unit)


def longest_task(graph):
    return max(graph, key=lambda task: graph.nodes[task]["duration"])


def longest_on_the_path(graph):
    return max(dag.critical_path(graph).path, key=lambda task: graph.nodes[task]["duration"])


def first_task(graph):
    return next(iter(graph))


def most_successors(graph):
    return max(graph, key=graph.out_degree)


def least_slack_then_longest(graph):
    free = dag.slack(graph)
    return min(graph, key=lambda task: (free[task], -graph.nodes[task]["duration"]))


def the_gain(graph):
    return 2.0


def path_only(graph, resources):
    return dag.critical_path(graph).length


def serial_over_all_units(graph, resources):
    return dag.serial_time(graph) / sum(resources.values())


def busiest_only(graph, resources):
    return max(dag.lower_bound(graph, resources).loads.values())


def loads_added_up(graph, resources):
    return max(dag.critical_path(graph).length, sum(dag.lower_bound(graph, resources).loads.values()))


def units_forgotten(graph, resources):
    loads = {name: load * resources[name] for name, load in dag.lower_bound(graph, resources).loads.items()}
    return max(dag.critical_path(graph).length, *loads.values())


def path_plus_load(graph, resources):
    bound = dag.lower_bound(graph, resources)
    return bound.critical_path + max(bound.loads.values())


def serial(graph, resources):
    return dag.serial_time(graph)


def smaller_of_the_two(graph, resources):
    bound = dag.lower_bound(graph, resources)
    return min(bound.critical_path, max(bound.loads.values()))


def longest_task_only(graph, resources):
    return max(duration for _, duration in graph.nodes.data("duration"))


def bound_as_tuple(graph, resources):
    return tuple(dag.lower_bound(graph, resources))


def the_path_itself(graph):
    return tuple(dag.critical_path(graph).path), dag.critical_path(graph).length


def all_through_zero_slack(graph):   # forgets that consecutive tasks must touch
    free = dag.slack(graph)
    zero = graph.subgraph(task for task in graph if free[task] == 0)
    ends = [task for task in zero if graph.out_degree(task) == 0]
    starts = [task for task in zero if graph.in_degree(task) == 0]
    paths = [path for a in starts for b in ends for path in (nx.all_simple_paths(zero, a, b) if a != b else [[a]])]
    return paths, dag.critical_path(graph).length


def one_last_task(graph):
    paths, length = SOLUTION.critical_paths(graph)
    return [path for path in paths if path[-1] == paths[0][-1]], length


def one_first_task(graph):
    paths, length = SOLUTION.critical_paths(graph)
    return [path for path in paths if path[0] == paths[0][0]], length


def branch_only_at_the_end(graph):
    paths, length = SOLUTION.critical_paths(graph)
    return list({path[-2:][0]: path for path in paths}.values()), length


def at_most_two(graph):
    paths, length = SOLUTION.critical_paths(graph)
    return paths[:2], length


def free_slack_to_infinity(graph):
    finish = finishes(graph)
    start = {task: finish[task] - graph.nodes[task]["duration"] for task in graph}
    return {task: min((start[after] - finish[task] for after in graph.successors(task)), default=float("inf"))
            for task in graph}


def counted_twice(graph):
    return {task: free - graph.nodes[task]["duration"] for task, free in dag.slack(graph).items()}


def free_plus_least_successor(graph):
    own, total = free_slack(graph), dag.slack(graph)
    return {task: own[task] + min((total[after] for after in graph.successors(task)), default=0) for task in graph}


def whole_numbers_only(graph):
    def length_with(task):
        changed = graph.copy()
        changed.nodes[task]["duration"] //= 2
        return dag.critical_path(changed).length
    return min(graph, key=length_with)


def longest_common_critical(graph):
    common = set.intersection(*(set(path) for path in all_critical_paths(graph)))
    return max((task for task in graph if task in common), key=lambda task: graph.nodes[task]["duration"])


def work_by(graph, resources):
    work = dict.fromkeys(resources, 0)
    for _, node in graph.nodes.items():
        work[node["resource"]] += node["duration"]
    return work


def max_load(graph, resources):
    return max(dag.critical_path(graph).length, *work_by(graph, resources).values())


def most_work_then_units(graph, resources):
    work = work_by(graph, resources)
    name = max(work, key=work.get)
    return max(dag.critical_path(graph).length, work[name] / resources[name])


def most_tasks_then_units(graph, resources):
    count = Counter(nx.get_node_attributes(graph, "resource").values())
    name = max(resources, key=lambda name: count[name])
    return max(dag.critical_path(graph).length, work_by(graph, resources)[name] / resources[name])


def floor_division(graph, resources):
    return max(dag.critical_path(graph).length,
               *(work // resources[name] for name, work in work_by(graph, resources).items()))


def several_units_never_limit(graph, resources):
    work = work_by(graph, resources)
    return max(dag.critical_path(graph).length, *(work[name] for name in resources if resources[name] == 1), 0)


def only_resources_on_the_path(graph, resources):
    path, length = dag.critical_path(graph)
    work = work_by(graph, resources)
    return max(length, *(work[name] / resources[name] for name in {graph.nodes[task]["resource"] for task in path}))


KEPT = nx.DiGraph()


def growing(layers, copy, compute):   # one graph for all calls
    KEPT.update(with_edges(raw, chain, reuse)(layers, copy, compute))
    return KEPT


def buffer_graph(layers, copy, compute, edges):
    graph = nx.DiGraph()
    for i in range(layers):
        graph.add_node(("copy", i), duration=copy, resource="h2d")
        graph.add_node(("gemm", i), duration=compute, resource="compute")
    graph.add_edges_from((a, b) for a, b in edges(layers) if a in graph and b in graph)
    return graph


def raw(layers):
    return [(("copy", i), ("gemm", i)) for i in range(layers)]


def chain(layers):
    return [(("gemm", i - 1), ("gemm", i)) for i in range(1, layers)]


def reuse(layers, distance=2):
    return [(("gemm", i - distance), ("copy", i)) for i in range(distance, layers)]


def queue(layers):
    return [(("copy", i - 1), ("copy", i)) for i in range(1, layers)]


def with_edges(*parts):
    return lambda layers, copy, compute: buffer_graph(
        layers, copy, compute, lambda count: [edge for part in parts for edge in part(count)])


WRONG = [
    ("critical_paths", most_tasks, "path with the most tasks"),
    ("critical_paths", greedy, "longest next task at every step"),
    ("critical_paths", one_of_several, "a path that ties is just as critical"),
    ("critical_paths", all_paths_of_the_length_by_tasks, "add up to 16"),
    ("critical_paths", critical_tasks_in_a_row, "There is no edge"),
    ("critical_paths", without_the_last_task, "takes 16, which is longer"),
    ("critical_paths", edge_weights, "add up to"),
    ("critical_paths", same_path_twice, "List every path once"),
    ("critical_paths", length_only, "Return two things"),
    ("critical_paths", tasks_that_are_not_there, "a list of the graph's tasks"),
    ("critical_paths", the_path_itself, "Return a *list* of paths"),
    ("critical_paths", dag.critical_path, "Return a *list* of paths"),
    ("critical_paths", lambda g: ([], dag.critical_path(g).length), "S-B-C-D-F-T takes 16."),
    ("critical_paths", all_through_zero_slack, "which is longer"),
    ("critical_paths", one_last_task, "a path that ties"),
    ("critical_paths", one_first_task, "a path that ties"),
    ("critical_paths", branch_only_at_the_end, "a path that ties"),
    ("critical_paths", at_most_two, "a path that ties"),
    ("critical_paths", lambda g: (np.array(dag.critical_path(g).path), 16), "Return a *list* of paths"),
    ("critical_paths", lambda g: (all_critical_paths(g), np.array([16, 16])), "length"),
    ("critical_paths", nothing, "returned None on the lesson's graph"),
    ("critical_paths", raises, "KeyError: 'nope'"),
    ("slack", free_slack, "Yours is free slack"),
    ("slack", slack_without_own_duration, "longer and the whole takes"),
    ("slack", slack_of_critical_only, "the whole still takes 16"),
    ("slack", slack_to_the_makespan, "longer and the whole takes"),
    ("slack", slack_missing_tasks, "one number for every task"),
    ("slack", slack_as_text, "slack of S: '0', on the lesson's graph"),
    ("slack", slack_by_edge_count, "slack of"),
    ("slack", nothing, "returned None"),
    ("slack", free_slack_to_infinity, "one finite number"),
    ("slack", lambda g: dict.fromkeys(g, float("nan")), "one finite number"),
    ("slack", lambda g: dict.fromkeys(g, 10**400), "one finite number"),
    ("slack", lambda g: dict.fromkeys(g, np.array([0, 0])), "one finite number"),
    ("slack", lambda g: {t: v == 0 for t, v in dag.slack(g).items()}, "one finite number"),
    ("slack", counted_twice, "never negative"),
    ("slack", lambda g: dict.fromkeys(g, 1e100), "slack of S"),
    ("slack", free_plus_least_successor, "longer and the whole"),
    ("best_to_halve", longest_task, "the rest never waited for it"),
    ("best_to_halve", longest_on_the_path, "another path is the longest"),
    ("best_to_halve", first_task, "halving"),
    ("best_to_halve", most_successors, "halving"),
    ("best_to_halve", least_slack_then_longest, "another path is the longest"),
    ("best_to_halve", the_gain, "Return one of this graph's tasks"),
    ("best_to_halve", nothing, "returned None"),
    ("best_to_halve", whole_numbers_only, "halving"),
    ("best_to_halve", longest_common_critical, "another path is the longest"),
    ("best_to_halve", lambda g: [1, 2], "Return one of this graph's tasks"),
    ("best_to_halve", lambda g: best_to_scale(g, 1 / 4), "Halving B saves 3.5 of 17; halving A saves 4"),
    ("best_to_halve", lambda g: best_to_scale(g, 3 / 4), "Halving A saves 3 of 18; halving B saves 4"),
    ("lower_bound", path_only, "h2d alone has 18 to work off"),
    ("lower_bound", serial_over_all_units, "h2d alone has 18"),
    ("lower_bound", busiest_only, "more workers cannot help it"),
    ("lower_bound", loads_added_up, "their loads are not added up"),
    ("lower_bound", units_forgotten, "beats it, so it is no bound"),
    ("lower_bound", path_plus_load, "beats it, so it is no bound"),
    ("lower_bound", serial, "beats it, so it is no bound"),
    ("lower_bound", smaller_of_the_two, "h2d alone has 18"),
    ("lower_bound", longest_task_only, "alone takes"),
    ("lower_bound", bound_as_tuple, "Return one finite number"),
    ("lower_bound", lambda g, r: float("nan"), "Return one finite number"),
    ("lower_bound", lambda g, r: Fraction(1, 3), "more workers cannot help it"),
    ("lower_bound", lambda g, r: Fraction(1000), "beats it, so it is no bound"),
    ("lower_bound", lambda g, r: dag.schedule(g, r).makespan, "time of *one* schedule"),
    ("lower_bound", lambda g, r: dag.schedule(g, r, fifo=True).makespan, "beats it, so it is no bound"),
    ("lower_bound", lambda g: 3, "called with 2 arguments, but takes (g)"),
    ("lower_bound", most_work_then_units, "alone has"),
    ("lower_bound", most_tasks_then_units, "alone has"),
    ("lower_bound", floor_division, "alone has 19 to work off on 2 units, which takes 9.5"),
    ("lower_bound", several_units_never_limit, "alone has"),
    ("lower_bound", only_resources_on_the_path, "h2d alone has 12"),
    ("lower_bound", lambda g, r: max_load(g, r) / max(r.values()), "alone"),
    ("double_buffer_graph", with_edges(raw, chain), "copy 2 can overwrite slot 0 while gemm 0 still reads it"),
    ("double_buffer_graph", with_edges(chain, reuse), "gemm 0 can read slot 0 before copy 0 has filled it"),
    ("double_buffer_graph", with_edges(raw, reuse), "gemm 1 can start before gemm 0 has made its input"),
    ("double_buffer_graph", with_edges(raw, chain, lambda n: reuse(n, 3)), "copy 2 can overwrite slot 0"),
    ("double_buffer_graph", with_edges(raw, chain, lambda n: reuse(n, 1)), "copy 1 protects nothing, and without it"),
    ("double_buffer_graph", with_edges(raw, chain, lambda n: reuse(n)[::2]), "copy 3 can overwrite slot 1"),
    ("double_buffer_graph", with_edges(raw, chain, lambda n: reuse(n)[:-1]), "copy 2 can overwrite slot 0"),
    ("double_buffer_graph", with_edges(raw, chain, lambda n: reuse(n)[: n // 2]), "can overwrite slot"),
    ("double_buffer_graph", with_edges(raw, chain, queue), "copy 2 can overwrite slot 0"),
    ("double_buffer_graph", with_edges(raw, lambda n: chain(n)[1:], reuse), "gemm 1 can start before gemm 0"),
    ("double_buffer_graph", with_edges(raw, chain, queue, lambda n: [(("copy", n - 1), ("copy", 0))] if n > 1 else []),
     "the graph has a cycle"),
    ("double_buffer_graph", lambda n, c, k: nx.Graph(with_edges(raw)(n, c, k)), "Return the networkx.DiGraph"),
    ("double_buffer_graph", with_edges(raw, chain, queue, lambda n: reuse(n, 1)), "gemm 0 → copy 1 protects nothing"),
    ("double_buffer_graph", with_edges(lambda n: [] if n > 1 else raw(n), lambda n: [(("copy", 1), ("gemm", 0))]),
     "gemm 0 can read slot 0 before copy 0"),
    ("double_buffer_graph", growing, "The tasks are"),
    ("double_buffer_graph", lambda n, c, k: nx.MultiDiGraph(with_edges(raw)(n, c, k)), "Return the networkx.DiGraph"),
    ("double_buffer_graph", lambda n, c, k: with_edges(raw, chain, reuse)(n, k, c), "should have duration="),
    ("double_buffer_graph", lambda n, c, k: with_edges(raw, chain, reuse)(n + 1, c, k), "The tasks are"),
    ("double_buffer_graph", lambda n, c, k: with_edges(raw, chain, reuse)(24, c, k), "The tasks are"),
]


@pytest.mark.parametrize(("puzzle", "answer", "says"), WRONG, ids=[f"{p}-{i}" for i, (p, _, _) in enumerate(WRONG)])
def test_wrong_answer_is_refused_for_the_right_reason(puzzle, answer, says):
    verdict = check.judge(named(puzzle, wrapped(answer)))
    assert not verdict.passed and not verdict.pending
    assert says in " ".join(str(verdict).split()), str(verdict)
    assert max(map(len, str(verdict).splitlines())) <= 80
    assert any(tick.holds is False for tick in verdict.ticks)


def wrapped(answer):
    return functools.wraps(answer)(lambda *arguments: answer(*arguments))


def test_every_puzzle_has_enough_wrong_answers():
    for puzzle in PUZZLES:
        assert sum(name == puzzle for name, _, _ in WRONG) >= 7


# --- right answers written otherwise -------------------------------------------------------------------------------

def spare_edges(layers, copy, compute):
    graph = with_edges(raw, chain, reuse, queue)(layers, copy, compute)
    if layers > 3:
        graph.add_edge(("gemm", 0), ("copy", 3))
    return graph


RIGHT = [
    ("critical_paths", lambda g: (tuple(map(tuple, SOLUTION.critical_paths(g)[0][::-1])), dag.critical_path(g).length)),
    ("slack", dag.slack),
    ("slack", lambda g: {task: float(value) for task, value in dag.slack(g).items()}),
    ("best_to_halve", lambda g: min(reversed(list(g)), key=lambda t: dag.critical_path(buffers_halved(g, t)).length)),
    ("lower_bound", lambda g, r: dag.lower_bound(g, r).length),
    ("double_buffer_graph", with_edges(queue, reuse, chain, raw)),
    ("double_buffer_graph", lambda n, c, k: backwards(with_edges(raw, chain, reuse)(n, c, k))),
    ("critical_paths", lambda g: (set(all_critical_paths(g)), np.int64(dag.critical_path(g).length))),
    ("slack", lambda g: {task: np.float64(value) + 1e-13 for task, value in dag.slack(g).items()}),
    ("slack", lambda g: MappingProxyType(dag.slack(g))),
    ("lower_bound", lambda g, r: Fraction(SOLUTION.lower_bound(g, r)) * (1 - Fraction(1, 10**15))),
    ("lower_bound", lambda g, r: Decimal(SOLUTION.lower_bound(g, r))),
    ("lower_bound", lambda g, r: np.array(SOLUTION.lower_bound(g, r) + 1e-12)),
    ("double_buffer_graph", spare_edges),
]


def backwards(graph):
    """The same graph, its tasks added in the opposite order."""
    turned = nx.DiGraph()
    turned.add_nodes_from(reversed(list(graph.nodes.items())))
    turned.add_edges_from(graph.edges)
    return turned


def best_to_scale(graph, factor):
    """The task that saves most when it takes ``factor`` of its time."""
    def length(task):
        changed = graph.copy()
        changed.nodes[task]["duration"] *= factor
        return dag.critical_path(changed).length
    return min(graph, key=length)


def buffers_halved(graph, task):
    changed = graph.copy()
    changed.nodes[task]["duration"] /= 2
    return changed


@pytest.mark.parametrize(("puzzle", "answer"), RIGHT, ids=[f"{p}-{i}" for i, (p, _) in enumerate(RIGHT)])
def test_right_answer_written_otherwise_passes(puzzle, answer):
    verdict = check.judge(named(puzzle, wrapped(answer)))
    assert verdict.passed, str(verdict)


def test_a_tighter_bound_and_spare_edges_are_advice_not_refusal():
    tighter = check.judge(named("lower_bound", wrapped(lambda g, r: dag.lower_bound(g, r).length)))
    assert tighter.passed and "tighter than asked" in str(tighter)
    spare = check.judge(named("double_buffer_graph", wrapped(spare_edges)))
    assert spare.passed and "already implied by others" in str(spare)


# --- the judges' own references, against brute force ---------------------------------------------------------------

@pytest.mark.parametrize("on", list(path_cases()))
def test_reference_paths_are_all_longest_paths(on):
    graph = path_cases()[on]
    starts = [task for task in graph if graph.in_degree(task) == 0]
    ends = [task for task in graph if graph.out_degree(task) == 0]
    paths = [tuple(path) for a, b in itertools.product(starts, ends) for path in nx.all_simple_paths(graph, a, b)]
    length = {path: sum(graph.nodes[task]["duration"] for task in path) for path in paths}
    assert set(all_critical_paths(graph)) == {path for path in paths if length[path] == max(length.values())}


def test_some_case_separates_each_idea():
    cases = path_cases()
    assert any(len(all_critical_paths(graph)) > 1 for graph in cases.values())
    assert any(longest_task(graph) not in dag.critical_path(graph).path for graph in cases.values())
    limits = {dag.lower_bound(*case).limited_by for case in resource_cases().values()}
    assert limits == {"critical path", "h2d", "compute", "worker"}


@pytest.mark.parametrize("layers", [2, 3, 4, 7])
def test_a_race_witness_is_a_run_that_the_graph_allows_with_the_two_in_the_wrong_order(layers):
    """Leave out edges and add others at random: for every missing order there is a witness, and it is one."""
    rng = random.Random(layers)
    everything = buffers.orders(layers)
    tasks = [(kind, i) for i in range(layers) for kind in ("copy", "gemm")]
    judged = 0
    for _ in range(80):
        kept = [(a, b) for a, b, _ in everything if rng.random() < 0.7]
        graph = buffer_graph(layers, rng.choice((2, 10)), rng.choice((2, 10)), lambda _, kept=kept: kept)
        for _ in range(rng.randrange(3)):
            a, b = rng.sample(tasks, 2)
            if not nx.has_path(graph, b, a):
                graph.add_edge(a, b)
        graph = buffers.in_order(graph)
        for first, then, breaks in everything:
            if nx.has_path(graph, first, then):
                continue
            plan = buffers.wrong_order(graph, first, then, layers)
            a, b = plan.runs[first], plan.runs[then]
            assert b.start < a.end
            for before, after in graph.edges:   # the run keeps every edge of the answer
                assert plan.runs[before].end <= plan.runs[after].start
            text = str(buffers._witness(graph, first, then, breaks, layers, "a case").verdict)
            assert f"{b.start:g}" in text and f"{a.end:g}" in text
            judged += 1
    assert judged > 40


def test_the_usual_race_is_shown_inside_an_otherwise_right_run():
    """Without the reuse edge, copy 2 starts while gemm 0, which has read copy 0, still runs."""
    graph = buffers.in_order(with_edges(raw, chain)(3, 2, 20))
    runs = buffers.wrong_order(graph, ("gemm", 0), ("copy", 2), 3).runs
    assert runs["copy", 0].end <= runs["gemm", 0].start < runs["copy", 2].start < runs["gemm", 0].end


# --- the frame around the judges -----------------------------------------------------------------------------------

def test_only_this_labs_functions_are_judged():
    with pytest.raises(ValueError, match="not its result: critical_paths, slack"):
        check.judge(3)
    with pytest.raises(ValueError, match="yours is called 'other'"):
        check.judge(named("other", wrapped(path_only)))


def test_check_prints_outside_a_notebook(capsys):
    check(stub("slack"))
    assert capsys.readouterr().out.startswith("slack: not done yet")


def test_an_answer_that_changes_its_graph_spoils_nothing():
    def destructive(graph):
        result = dag.slack(graph)
        graph.clear()
        return result
    assert check.judge(named("slack", destructive)).passed


@pytest.mark.parametrize("function", [dag.slack, raises])
def test_the_error_of_a_learner_names_the_line_that_the_learner_wrote(function):
    source = "def slack(graph):\n    def inner():\n        return help_me(None)\n    return inner()\n"
    namespace = {"help_me": function if function is dag.slack else (lambda _: raises(nx.DiGraph()))}
    exec(compile(source, "<a cell>", "exec"), namespace)
    text = str(check.judge(namespace["slack"]))
    assert "Line 3 of its cell" in text and "the lesson's graph" in text


class Unshowable:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize("puzzle", PUZZLES)
@pytest.mark.parametrize("value", [
    Unshowable(), float("nan"), float("inf"), 10**400, Fraction(1, 3), 1j, np.array([1, 2]), np.array(3), [], {}, set(),
    "text", b"bytes", object, True, (1, 2), ([], []), ([[]], 3), [Unshowable(), 3], list(range(100_000)),
    {"S": Unshowable()}, nx.DiGraph(), nx.DiGraph([(Unshowable(), 3)]), iter([1]), Exception("x"),
], ids=lambda value: type(value).__name__)
def test_whatever_is_returned_gets_a_verdict(puzzle, value):
    def answer(*_):
        return value
    verdict = check.judge(named(puzzle, wrapped(answer)))
    assert not verdict.passed and not verdict.pending
    assert len(str(verdict)) < 6000
    assert max(map(len, str(verdict).splitlines())) <= 80
    assert "check could not read" not in str(verdict)


def test_a_refusal_prints_its_case():
    text = " ".join(str(check.judge(named("lower_bound", wrapped(path_only)))).split())
    assert "The case: c0 6 on h2d" in text and "units: h2d 1, compute 1" in text
