"""Sliders: one redraw per change, typed numbers are held to the limits, a saved notebook shows a picture."""

from __future__ import annotations

import base64
import copy

import ipywidgets as widgets
import nbformat
import networkx as nx
import pytest

from utils import dag
from utils.sliders import Control, ScheduleSliders, TimelineSliders, strip_widget_state
from utils.timeline import dag_and_schedule, timeline

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def fork(duration=3):
    graph = nx.DiGraph()
    graph.add_edges_from([("S", "A"), ("S", "B"), ("A", "T"), ("B", "T")])
    nx.set_node_attributes(graph, {"S": 1, "A": 4, "B": duration, "T": 1}, "duration")
    return graph


def build(b, workers):
    return dag.schedule(fork(b), int(workers))


def sliders():
    return TimelineSliders([Control("b", 0, 10, 3.0, unit="ms"), Control("workers", 1, 6, 2, whole=True)], build)


def row(view, name):
    return view._rows[name]


def image(view):
    return next(child for child in view.children if isinstance(child, widgets.Image))


def message(view):
    return next(child for child in view.children if isinstance(child, widgets.HTML)).value


def test_they_are_a_box_of_sliders_fields_and_one_image():
    view = sliders()
    assert isinstance(view, widgets.VBox) and view.redraws == 1
    assert bytes(image(view).value).startswith(b"\x89PNG") and image(view).layout.align_self == "flex-start"
    assert isinstance(row(view, "b").slider, widgets.FloatSlider)
    assert isinstance(row(view, "workers").field, widgets.IntText)
    assert row(view, "b").slider.description == "b" and not row(view, "b").slider.readout


@pytest.mark.parametrize("part", ["slider", "field"])
def test_moving_or_typing_redraws_once_and_moves_the_other(part):
    view = sliders()
    before = image(view).value
    getattr(row(view, "b"), part).value = 7.5
    assert view.redraws == 2 and image(view).value != before
    assert row(view, "b").slider.value == row(view, "b").field.value == 7.5
    assert view.values == {"b": 7.5, "workers": 2}
    assert "actual 9.5 ms" in view.text and "b 7.5 ms (0 to 10)" in view.text


def test_the_picture_is_that_of_the_values():
    view = sliders()
    view.set(b=6, workers=1)
    assert view.redraws == 2
    assert view.picture.text == timeline(build(6, 1)).text
    assert view.png == timeline(build(6, 1)).png
    view.set(b=3, workers=2)
    assert view.png == timeline(build(3, 2)).png


@pytest.mark.parametrize(("name", "typed", "allowed", "words"), [
    ("b", 99, 10, "99 is not between 0 and 10, set to 10"),
    ("b", -5, 0, "-5 is not between 0 and 10, set to 0"),
    ("b", float("inf"), 10, "not between"),
    ("workers", 70, 6, "not between 1 and 6"),
    ("workers", 0, 1, "not between 1 and 6"),
    ("b", float("nan"), 3, "no number, the value stays"),
])
def test_typed_numbers_out_of_range_are_held_to_the_limits_and_said(name, typed, allowed, words):
    view = sliders()
    row(view, name).field.value = typed
    assert view.values[name] == allowed == row(view, name).field.value == row(view, name).slider.value
    assert words in message(view) and view.redraws == 2
    row(view, "b").slider.value = 4.5
    assert words not in message(view)


def test_a_small_step_of_a_slider_carries_no_binary_noise():
    view = sliders()
    row(view, "b").slider.value = 0.1 + 0.2
    assert view.values["b"] == 0.3


def test_set_changes_all_or_nothing():
    view = sliders()
    for wrong, words in (({"b": 11}, "not between"), ({"b": 5, "nobody": 1}, "no control 'nobody'"),
                         ({"b": 5, "workers": 1.5}, "not a whole number")):
        with pytest.raises(ValueError, match=words):
            view.set(**wrong)
    assert view.values == {"b": 3, "workers": 2} and view.redraws == 1


def test_an_error_while_moving_is_said_and_the_picture_stays():
    def fragile(b):
        if b > 5:
            raise ValueError("no schedule for <b> above 5")
        return dag.schedule(fork(b), 1)

    view = TimelineSliders([Control("b", 0, 10, 3.0)], fragile)
    before = image(view).value
    row(view, "b").slider.value = 8
    assert image(view).value == before and "no schedule for &lt;b&gt; above 5" in message(view)
    row(view, "b").slider.value = 4
    assert image(view).value != before and "no schedule" not in message(view)
    with pytest.raises(ValueError, match="no schedule"):
        TimelineSliders([Control("b", 0, 10, 8.0)], fragile)


def test_controls_refuse_what_cannot_work():
    for arguments, words in (((0, 10, 11), "does not lie"), ((5, 1, 3), "does not lie"),
                             ((0, float("nan"), 1), "does not lie")):
        with pytest.raises(ValueError, match=words):
            Control("b", *arguments)
    with pytest.raises(ValueError, match="step"):
        Control("b", 0, 10, 1, step=0)
    with pytest.raises(ValueError, match="whole numbers"):
        Control("b", 0, 10, 1.5, whole=True)
    with pytest.raises(ValueError, match="share a name"):
        TimelineSliders([Control("b", 0, 1, 0), Control("b", 0, 1, 0)], build)


def test_the_notebook_gets_widget_picture_and_text():
    view = sliders()
    data, metadata = view._repr_mimebundle_()
    assert set(data) == {"text/plain", "image/png", WIDGET_VIEW}
    assert data["text/plain"] == repr(view) == view.text
    assert base64.b64decode(data["image/png"]) == view.png
    assert "actual" in metadata["image/png"]["alt"]
    assert repr(view) == repr(sliders()) and "0x" not in repr(view)
    assert max(map(len, repr(view).splitlines())) <= 80


# schedules
def test_schedule_sliders_move_task_times_and_workers():
    graph = fork()
    view = ScheduleSliders(graph, 2, tasks=["A", "B"], workers=(1, 4), title="Fork")
    assert view.values == {"A": 4, "B": 3, "workers": 2}
    assert view.text.split("\n\n")[1] == "Fork"
    view.set(B=7, workers=1)
    moved = fork(7)
    assert view.picture.text == dag_and_schedule(moved, dag.schedule(moved, 1), title="Fork").text
    assert view.png == dag_and_schedule(moved, dag.schedule(moved, 1), title="Fork").png
    assert graph.nodes["B"]["duration"] == 3      # the caller's graph is left alone


def test_the_picture_keeps_its_size_while_workers_change():
    view = ScheduleSliders(fork(), 1, workers=(1, 6))
    sizes = set()
    for workers in (1, 6, 3):
        view.set(workers=workers)
        sizes.add((image(view).layout.width, image(view).layout.height, bytes(image(view).value[16:24])))
    assert len(sizes) == 1


def test_the_frame_is_drawn_again_only_when_the_axis_or_the_lanes_change():
    view = ScheduleSliders(fork(), 2, tasks=["B"], workers=(1, 4))
    frame = view._stage._frame
    view.set(B=2)
    assert view._stage._frame is frame
    view.set(workers=3)
    assert view._stage._frame is not frame


def test_units_of_named_resources_and_queues():
    graph = nx.DiGraph()
    for layer in range(3):
        graph.add_node(f"copy {layer}", duration=2.5, resource="h2d")
        graph.add_node(f"mm {layer}", duration=4, resource="compute")
        graph.add_edge(f"copy {layer}", f"mm {layer}")
    view = ScheduleSliders(graph, {"h2d": 1, "compute": 1}, tasks={"copy 1": (0.0, 9.0)}, workers={"compute": (1, 3)},
                           fifo=True, draw_graph=False)
    assert view.values == {"copy 1": 2.5, "compute": 1}
    view.set(compute=3, **{"copy 1": 9.0})
    graph.nodes["copy 1"]["duration"] = 9.0
    assert view.picture.text == timeline(dag.schedule(graph, {"h2d": 1, "compute": 3}, fifo=True)).text


def test_schedule_sliders_refuse_unknown_names():
    with pytest.raises(ValueError, match="'X' is no task"):
        ScheduleSliders(fork(), 2, tasks=["X"])
    with pytest.raises(ValueError, match="so workers must too"):
        ScheduleSliders(fork(), {"worker": 2}, workers=(1, 3))
    with pytest.raises(ValueError, match="'gpu', which is no resource"):
        ScheduleSliders(fork(), {"worker": 2}, workers={"gpu": (1, 3)})
    with pytest.raises(ValueError, match="starts at 9"):
        ScheduleSliders(fork(), 9, workers=(1, 3))


# saved notebooks
def test_widget_state_is_stripped_and_the_rest_stays():
    notebook = nbformat.v4.new_notebook(metadata={
        "widgets": {"state": {}}, "language_info": {"name": "python", "version": "3.11.7"}})
    data = {"text/plain": "sliders", "image/png": "iVBOR", WIDGET_VIEW: {"model_id": "1"}}
    output = nbformat.v4.new_output("execute_result", data, metadata={WIDGET_VIEW: {}}, execution_count=1)
    notebook.cells = [nbformat.v4.new_markdown_cell("text"), nbformat.v4.new_code_cell("s", outputs=[output]),
                      nbformat.v4.new_code_cell("print(1)", outputs=[nbformat.v4.new_output("stream", text="1\n")])]
    kept = copy.deepcopy(notebook)
    assert strip_widget_state(notebook) is notebook
    assert notebook.cells[1].outputs[0]["data"] == {"text/plain": "sliders", "image/png": "iVBOR"}
    assert notebook.cells[1].outputs[0]["metadata"] == {}
    assert notebook.metadata == {"language_info": {"name": "python"}}
    assert notebook.cells[0] == kept.cells[0] and notebook.cells[2] == kept.cells[2]
    assert strip_widget_state(copy.deepcopy(notebook)) == notebook
    nbformat.validate(notebook)
