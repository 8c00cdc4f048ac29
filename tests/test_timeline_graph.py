"""Drawings of task graphs: every task and edge is there, left of what follows it, in text as in the picture."""

from __future__ import annotations

import itertools

import networkx as nx
import pytest
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.text import Text

from utils import dag
from utils.timeline import dag_and_schedule, dag_figure
from utils.timeline.graph_layout import _apart, graph_height, view_of
from utils.timeline.graph_picture import graph_artists
from utils.timeline.kinds import CRITICAL
from utils.timeline.names import columns
from utils.timeline.scene import WIDTH_IN

TIMES = {"S": 1, "A": 4, "B": 3, "C": 5, "D": 6, "E": 4, "F": 3, "T": 1}
EDGES = [("S", "A"), ("S", "B"), ("B", "C"), ("A", "D"), ("C", "D"), ("D", "F"), ("A", "E"), ("E", "T"), ("F", "T")]


def example():
    graph = nx.DiGraph()
    for task, duration in TIMES.items():
        graph.add_node(task, duration=duration)
    graph.add_edges_from(EDGES)
    return graph


def chain(count):
    graph = nx.path_graph(count, create_using=nx.DiGraph)
    nx.set_node_attributes(graph, 1, "duration")
    return graph


def random_graph(seed, tasks=30):
    graph = nx.gnp_random_graph(tasks, 0.12, seed=seed, directed=True)
    graph.remove_edges_from([(a, b) for a, b in graph.edges if a >= b])
    nx.set_node_attributes(graph, {task: task % 5 for task in graph}, "duration")
    return graph


@pytest.mark.parametrize("graph", [example(), chain(1), chain(40), nx.DiGraph(), *map(random_graph, range(4))])
def test_tasks_stand_apart_and_left_of_what_follows_them(graph):
    view = view_of(graph, True, "ms")
    assert set(view.places) == set(graph)
    for before, after in graph.edges:
        assert view.places[before][0] < view.places[after][0]
    points = [*view.places.values(), *itertools.chain.from_iterable(view.bends.values())]
    for (x, y), (other_x, other_y) in itertools.combinations(points, 2):
        assert x != other_x or abs(y - other_y) >= 0.75
    assert all(len(view.bends[a, b]) == view.places[b][0] - view.places[a][0] - 1 for a, b in graph.edges)


def test_the_layout_ignores_durations():
    graph, slower = example(), example()
    nx.set_node_attributes(slower, 100, "duration")
    assert view_of(graph, True, "ms").places == view_of(slower, True, "ms").places


@pytest.mark.parametrize("wanted", [[0, 0, 0], [5, 1, 2], [1, 2, 3], [0, 10, 0], []])
def test_places_are_kept_apart_and_balanced(wanted):
    placed = _apart([float(each) for each in wanted])
    assert all(b - a >= 1 - 1e-9 for a, b in itertools.pairwise(placed))
    assert sum(placed) == pytest.approx(sum(wanted))


@pytest.mark.parametrize("graph", [example(), chain(12), random_graph(1)])
def test_the_picture_has_every_task_and_edge_inside_its_frame(graph):
    view = view_of(graph, True, "ms")
    width, height = WIDTH_IN - 0.2, graph_height(view)
    artists = graph_artists(view, width, height)
    boxes = [artist for artist in artists if isinstance(artist, FancyBboxPatch) and artist.get_fill() is not False
             and artist.get_facecolor()[3] > 0]
    arrows = [artist for artist in artists if isinstance(artist, FancyArrowPatch)]
    assert len(boxes) == len(graph) and len(arrows) == graph.number_of_edges()
    for box in boxes:
        assert box.get_x() >= 0 and box.get_x() + box.get_width() <= width
        assert box.get_y() >= 0 and box.get_y() + box.get_height() <= height


def test_the_critical_path_is_red_and_durations_are_written():
    view = view_of(example(), True, "ms")
    artists = graph_artists(view, 9.0, graph_height(view))
    red = [artist for artist in artists if hasattr(artist, "get_edgecolor")
           and tuple(artist.get_edgecolor()) == tuple(_rgba(CRITICAL))]
    assert len(red) == 6 + 5      # tasks and edges of S-B-C-D-F-T
    words = {artist.get_text() for artist in artists if isinstance(artist, Text)}
    assert {*TIMES, "6 ms"} <= words
    assert view_of(example(), False, "ms").path == ()


def _rgba(colour):
    from matplotlib.colors import to_rgba
    return to_rgba(colour)


def test_the_text_lists_edges_and_marks_the_critical_path():
    assert dag_figure(example()).text == """\
graph: 8 tasks, 9 edges, serial 27 ms, critical path 19 ms (marked *)
* S  1 ms  -> A, B
  A  4 ms  -> D, E
* B  3 ms  -> C
* C  5 ms  -> D
* D  6 ms  -> F
  E  4 ms  -> T
* F  3 ms  -> T
* T  1 ms
critical path: S > B > C > D > F > T"""


def test_texts_of_awkward_graphs_fit_and_lose_no_edge():
    graph = nx.DiGraph()
    names = [f"Aufgabe mit langem Namen {index} 任务" for index in range(30)]
    for name in names:
        graph.add_node(name, duration=0.001)
    graph.add_edges_from((names[0], name) for name in names[1:])
    text = dag_figure(graph).text
    assert max(map(columns, text.splitlines())) <= 80
    assert all(f"Namen {index}" in text for index in range(30))
    assert dag_figure(nx.DiGraph()).text.startswith("graph: 0 tasks, 0 edges, serial 0 ms")


def test_graph_and_schedule_share_one_figure_and_agree():
    graph = example()
    schedule = dag.schedule(graph, 2)
    picture = dag_and_schedule(graph, schedule, title="Two workers")
    assert picture.text.startswith("Two workers\n\ngraph: 8 tasks")
    assert "bound 19 ms (cold: critical path), actual 19 ms, lost 0 ms" in picture.text
    assert len(picture.figure.axes) == 2
    upper, lower = (axes.get_position() for axes in picture.figure.axes)
    assert lower.y1 < upper.y0 and lower.y0 > 0
    assert picture.png == dag_and_schedule(graph, schedule, title="Two workers").png
    assert picture.png != dag_and_schedule(graph, schedule, title="Two workers", critical=False).png


def test_bad_graphs_get_one_clear_error():
    cycle = nx.DiGraph()
    cycle.add_edges_from([("a", "b"), ("b", "a")])
    nx.set_node_attributes(cycle, 1, "duration")
    with pytest.raises(dag.GraphError, match="cycle"):
        dag_figure(cycle)
    with pytest.raises(ValueError, match="at most 300"):
        dag_figure(chain(301))
    with pytest.raises(ValueError, match="'X'"):
        dag_figure(example(), critical=["S", "X"])
    with pytest.raises(ValueError, match="different tasks"):
        dag_and_schedule(example(), dag.schedule(chain(3), 1))
