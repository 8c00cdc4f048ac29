"""Timelines: what is drawn equals what ran, text fits 80 columns, nothing depends on the moment of drawing."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from utils import dag
from utils.intervals import measure, union
from utils.timeline import timeline
from utils.timeline.adapt import Options, panels_of
from utils.timeline.collapse import collapse
from utils.timeline.kinds import CODE, CRITICAL, GAP, GAP_INK, INK, KINDS, PAPER
from utils.timeline.lanes import DPI, FONT, Scale, bar_artists, lane_heights
from utils.timeline.names import columns, fit, label_columns, short_name
from utils.timeline.scene import WIDTH_IN


def trace_of(*spans, name=""):
    """A trace of (name, kind, lane, stream, start, duration) spans."""
    table = list(zip(*spans, strict=True)) or [()] * 6
    keys = ("name", "kind", "lane", "stream", "start_us", "duration_us")
    sizes = [2**27 if span[1] == "h2d" else float("nan") for span in spans]
    return SimpleNamespace(columns={**dict(zip(keys, map(list, table), strict=True)), "bytes": sizes}, name=name)


def double_buffer(layers=4, copy=2430.0, compute=700.0):
    spans = [("launch", "host", "host", 1, 0.0, 50.0)]
    for layer in range(layers):
        spans.append(("Memcpy HtoD (Pinned -> Device)", "h2d", "h2d", 13, 100 + layer * copy, copy))
        spans.append(("void gemm<float>(int)", "kernel", "compute", 7, 100 + (layer + 1) * copy, compute))
    return trace_of(*spans)


def random_trace(count, seed=0, mean=12.0):
    random = np.random.default_rng(seed)
    lane = random.choice(["host", "h2d", "compute", "d2h"], count)
    return SimpleNamespace(name="", columns={
        "name": [f"void kernel<{index % 977}>(x)" for index in range(count)],
        "kind": np.where(lane == "compute", "kernel", lane), "lane": lane, "stream": random.integers(7, 9, count),
        "start_us": random.uniform(0, 1e6, count), "duration_us": random.exponential(mean, count),
        "bytes": np.full(count, np.nan)})


def two_workers():
    graph = nx.DiGraph()
    graph.add_edges_from([("S", "B"), ("B", "T"), ("S", "A"), ("A", "T")])
    nx.set_node_attributes(graph, {"S": 1, "A": 4, "B": 6, "T": 1}, "duration")
    return dag.schedule(graph, 2)


def panel_of(x, **options):
    return panels_of(x, Options(**options))[0]


def assert_narrow(text):
    wide = [line for line in text.splitlines() if columns(line) > 80]
    assert not wide, wide


# what a panel says
def test_busy_time_of_every_lane_equals_the_union_of_its_spans():
    trace = random_trace(3000)
    panel = panel_of(trace)
    table = trace.columns
    for index, lane in enumerate(panel.lanes):
        stream = lane.detail.split()[-1]
        mine = (table["lane"] == lane.engine) & (table["stream"].astype(str) == stream)
        spans = union(table["start_us"][mine], table["start_us"][mine] + table["duration_us"][mine])
        assert panel.busy_time(index) == pytest.approx(measure(spans))
        assert panel.idle_share(index) == pytest.approx(1 - measure(spans) / (panel.window[1] - panel.window[0]))


def test_lanes_stand_in_the_order_of_the_engines_and_streams():
    trace = trace_of(("k", "kernel", "compute", 20, 0, 1), ("k", "kernel", "compute", 7, 0, 1),
                     ("c", "d2h", "d2h", 9, 0, 1), ("c", "h2d", "h2d", 9, 0, 1), ("h", "host", "host", 1, 0, 1),
                     ("s", "sync", "sync", 7, 0, 1))
    assert [lane.label for lane in panel_of(trace).lanes] == [
        "host", "H2D stream 9", "compute stream 7", "compute stream 20", "D2H stream 9"]
    assert [lane.label for lane in panel_of(trace, lanes=["sync", "d2h"]).lanes] == ["D2H stream 9", "sync stream 7"]


def test_a_trace_counts_uncovered_copies_and_only_device_time():
    panel = panel_of(double_buffer(4, copy=1000.0, compute=700.0))
    assert panel.facts.actual == pytest.approx(4 * 1000 + 700)
    assert panel.facts.uncovered == pytest.approx(4 * 1000 - 3 * 700)
    assert panel.facts.bound is None and panel.facts.lost is None


def test_bound_actual_and_lost_of_a_schedule():
    graph = two_workers().graph
    facts = panel_of(dag.schedule(graph, 1)).facts
    assert (facts.bound, facts.actual, facts.lost) == (12, 12, 0)
    unlimited = panel_of(dag.schedule(graph)).facts
    assert (unlimited.bound, unlimited.actual) == (8, 8)
    given = panel_of(dag.schedule(graph, 1), bound=8, bound_kind="steady").facts
    assert (given.lost, given.bound_kind) == (4, "steady")


def test_the_printed_loss_is_the_difference_of_the_printed_times():
    text = timeline(double_buffer(), bound=9720.4, bound_kind="steady").text
    assert "bound 9.720 ms (steady), actual 10.420 ms, lost 0.700 ms" in text or \
        "bound 9.72 ms (steady), actual 10.42 ms, lost 0.70 ms" in text


def test_idle_gaps_are_marked_on_the_compute_lane_and_complete_its_busy_time():
    panel = panel_of(double_buffer())
    assert [panel.lanes[lane].engine for lane in panel.gaps] == ["compute"]
    lane = next(iter(panel.gaps))
    assert measure(panel.gaps[lane]) + panel.busy_time(lane) == pytest.approx(panel.facts.actual)


def test_idle_gaps_of_a_schedule_are_on_its_compute_units():
    graph = nx.DiGraph()
    graph.add_edges_from([("copy", "mm")])
    graph.add_node("copy", duration=5, resource="h2d")
    graph.add_node("mm", duration=2, resource="compute")
    panel = panel_of(dag.schedule(graph, {"h2d": 1, "compute": 1}))
    assert [panel.lanes[lane].label for lane in panel.gaps] == ["compute"]
    assert measure(panel.gaps[1]) == 5


def test_without_compute_units_the_gaps_are_on_the_bottleneck():
    graph = nx.DiGraph()
    graph.add_node("cook", duration=5, resource="cooker")
    graph.add_node("fill", duration=2, resource="you")
    graph.add_edge("fill", "cook")
    panel = panel_of(dag.schedule(graph, {"cooker": 1, "you": 1}))
    assert [panel.lanes[lane].label for lane in panel.gaps] == ["cooker"]
    assert measure(panel.gaps[0]) == 2


# geometry
@pytest.mark.parametrize("run", [double_buffer(), two_workers(), random_trace(400, mean=3000.0)])
def test_every_bar_lies_inside_its_lane_and_has_its_duration(run):
    panel = panel_of(run)
    scale = Scale(panel.window, 780.0, "ms", 1e-3)
    kept, _ = collapse(panel, panel.window, scale.pixels)
    tops = np.concatenate(([0.0], np.cumsum(lane_heights(panel))))
    boxes = [path.get_extents() for artist in bar_artists(panel, scale) if hasattr(artist, "get_hatch")
             and artist.get_edgecolor().size and artist.get_facecolor().size and to_rgb(GAP) != tuple(
                 artist.get_facecolor()[0][:3]) for path in artist.get_paths()]
    assert len(boxes) == len(kept)
    drawn = sorted((round(box.x0, 6), round(box.x1, 6)) for box in boxes)
    assert drawn == sorted(zip(panel.start[kept].round(6), panel.stop[kept].round(6), strict=True))
    by_span = {(round(panel.start[bar], 6), round(panel.stop[bar], 6)): panel.lane[bar] for bar in kept}
    for box in boxes:
        lane = by_span[round(box.x0, 6), round(box.x1, 6)]
        if len(by_span) == len(kept):
            assert tops[lane] < min(box.y0, box.y1) and max(box.y0, box.y1) < tops[lane + 1]


def test_overlapping_spans_of_a_lane_get_rows_of_their_own():
    panel = panel_of(trace_of(("outer", "host", "host", 1, 0, 100), ("inner", "host", "host", 1, 10, 20),
                              ("next", "host", "host", 1, 100, 20)))
    assert panel.row.tolist() == [0, 1, 0] and panel.rows == (2,)
    assert panel.busy_time(0) == 120


@pytest.mark.parametrize("seed", range(3))
def test_collapsing_preserves_busy_time(seed):
    trace = random_trace(20_000, seed, mean=3.0)
    spans = np.argsort(trace.columns["start_us"])
    ends = np.cumsum(trace.columns["duration_us"][spans] + 20.0)      # one after the other: no overlap in any row
    trace.columns["start_us"][spans] = ends - trace.columns["duration_us"][spans]
    panel = panel_of(trace)
    kept, blocks = collapse(panel, panel.window, 780.0)
    assert 0 < blocks.share.size <= 391 * len(panel.lanes) and blocks.share.max() <= 1
    for lane in range(len(panel.lanes)):
        bars = (panel.stop - panel.start)[kept][panel.lane[kept] == lane].sum()
        cells = ((blocks.stop - blocks.start) * blocks.share)[blocks.lane == lane].sum()
        assert bars + cells == pytest.approx(panel.busy_time(lane))


def test_a_hundred_thousand_spans_are_drawn_with_few_shapes():
    trace = random_trace(100_000)
    picture = timeline(trace)
    shapes = sum(len(artist.get_paths()) for axes in picture.figure.axes for artist in axes.collections)
    assert shapes < 20_000
    assert_narrow(picture.text)
    assert len(picture.png) < 200_000


def test_zoom_shows_the_window_and_keeps_the_facts_of_the_whole_run():
    whole, part = timeline(double_buffer()).text, timeline(double_buffer(), start=3000, stop=5000).text
    assert "shown: 3 to 5 ms of the run" in part and "shown" not in whole
    assert [line for line in whole.splitlines() if "actual" in line] == [
        line for line in part.splitlines() if "actual" in line]
    panel = panel_of(double_buffer(), start=3000, stop=5000)
    assert panel.busy_time(0) == 0 and panel.busy_time(1) == pytest.approx(2000)


@pytest.mark.parametrize("window", [(float("nan"), None), (5, 5), (9, 3), (None, float("inf")), ("a", None),
                                    (-10, -5), (1e9, 2e9), (True, None)])
def test_bad_windows_get_one_clear_error(window):
    with pytest.raises(ValueError, match=r"window|number"):
        timeline(double_buffer(), start=window[0], stop=window[1])


def test_other_bad_input_gets_one_clear_error():
    with pytest.raises(TypeError, match="not int"):
        timeline(3)
    with pytest.raises(ValueError, match="at least one"):
        timeline([])
    with pytest.raises(ValueError, match="duration_us = -1"):
        timeline(trace_of(("k", "kernel", "compute", 7, 0, -1)))
    with pytest.raises(ValueError, match="start_us = nan"):
        timeline(trace_of(("k", "kernel", "compute", 7, float("nan"), 1)))
    with pytest.raises(ValueError, match="bound is -3"):
        timeline(two_workers(), bound=-3)
    with pytest.raises(ValueError, match=r"no lanes \['hd2'\]"):
        timeline(double_buffer(), lanes=["hd2"])
    with pytest.raises(ValueError, match="different units"):
        timeline([double_buffer(), two_workers()])
    with pytest.raises(ValueError, match="unit is"):
        timeline(two_workers(), unit="a very long unit of time")


# edge cases
@pytest.mark.parametrize("spans", [
    [],
    [("k", "kernel", "compute", 7, 0, 0)],
    [("k", "kernel", "compute", 7, 5, 0), ("k", "kernel", "compute", 7, 5, 0)],
    [("k", "kernel", "compute", 7, 0, 1)],
    [("k", "kernel", "compute", 7, 0, 1e6)],
    [("k", "kernel", "compute", 7, 0, 0.001)],
    [("k", "kernel", "compute", 7, 1e12, 3600e6)],
    [("矩阵乘法 $x_1$ €\n🚀", "kernel", "compute", 7, 0, 10), ("ä́\x00\x1b[31m", "host", "host", "工作线程", 0, 10)],
    [("k", "kernel", "compute", float("nan"), 0, 1), ("k", "kernel", "compute", None, 3, 1)],
    [(f"k{index}", "kernel", "compute", index, index, 1) for index in range(40)],
    [("s", "sync", "sync", 7, 0, 10)],
])
def test_odd_traces_have_a_picture_and_a_narrow_text(spans):
    picture = timeline(trace_of(*spans), title="一个很长的标题 " * 12)
    assert picture.png.startswith(b"\x89PNG") and len(picture.png) > 1000
    assert_narrow(picture.text)
    assert "key:" in picture.text and "lane" in picture.text


def test_a_span_of_no_duration_is_visible_in_the_text():
    spans = [("k", "kernel", "compute", 7, 0, 10), ("k", "kernel", "compute", 8, 5, 0)]
    row = next(line for line in timeline(trace_of(*spans)).text.splitlines() if line.startswith("compute stream 8"))
    assert row.count(":") == 1 and row.strip("|").count("#") == 0


@pytest.mark.parametrize(("duration", "unit"), [(1.0, "ns"), (1e3, "µs"), (1e5, "ms"), (1e7, "s")])
def test_traces_choose_a_readable_unit(duration, unit):
    text = timeline(trace_of(("k", "kernel", "compute", 7, 0, duration))).text
    assert f" {unit}" in text.splitlines()[0]


def test_schedules_keep_the_unit_in_which_they_were_written():
    assert timeline(two_workers(), unit="minutes").text.splitlines()[0].endswith("lost 0 minutes")
    assert "8 ms" in timeline(two_workers()).text
    assert "8 µs" in timeline(two_workers(), unit="us").text


# text
def test_text_of_a_small_schedule():
    assert timeline(two_workers(), title="Two workers").text == """\
Two workers
bound 8 ms (cold: critical path), actual 8 ms, lost 0 ms
worker 1 |[S=======[B=================================================[T=======|
worker 2 |.........[A================================..........................|
ms        0                2                4                6                8
key: = task, : busy for less than half, . idle, [ a bar begins

lane        spans          busy   idle
worker 1        3          8 ms    0 %
worker 2        1          4 ms   50 %
critical path: S > B > T"""


def test_rows_of_text_show_the_shares_of_the_model():
    panel = panel_of(double_buffer(8, copy=1000.0, compute=500.0))
    rows = {line.split(" |")[0].strip(): line.split(" |")[1][:-1]
            for line in timeline(double_buffer(8, copy=1000.0, compute=500.0)).text.splitlines() if " |" in line}
    for index, lane in enumerate(panel.lanes):
        row = rows[lane.label]
        idle = row.count(".") / len(row)
        assert abs(idle - panel.idle_share(index)) < 0.1


def test_several_runs_share_one_axis():
    slow = dag.schedule(two_workers().graph, 1)
    text = timeline({"yours": slow, "target": two_workers()}).text
    rows = [line for line in text.splitlines() if line.startswith("worker 1 ") and "|" in line]
    assert rows[1].rstrip("|").endswith("...") and not rows[0].rstrip("|").endswith(".")
    assert "yours:" in text and "target:" in text and text.count("key:") == 1
    assert_narrow(text)
    figure = timeline([slow, two_workers()]).figure
    assert len({axes.get_xlim() for axes in figure.axes}) == 1


def test_every_kind_has_its_own_character_hatch_colour_and_word():
    for field in ("key", "word", "colour", "char"):
        assert len({getattr(kind, field) for kind in KINDS}) == len(KINDS)
    plain = [kind.key for kind in KINDS if not kind.hatch]
    assert plain == ["kernel", "host", "task", "forward"]      # these never share a lane
    assert len({kind.hatch for kind in KINDS}) == len(KINDS) - len(plain) + 1


def luminance(colour):
    channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_labels_can_be_read_on_everything_they_stand_on():
    for kind in KINDS:
        assert contrast(INK, kind.colour) >= 4.5, kind.key      # WCAG AA
    assert contrast(GAP_INK, GAP) >= 4.5 and contrast(INK, PAPER) >= 7
    for kind in KINDS:
        if kind.key != "sync":
            assert contrast(CRITICAL, kind.colour) >= 2, kind.key      # a heavy outline, also in grey


def test_pictures_are_opaque_narrow_enough_and_legible():
    figure = timeline(double_buffer()).figure
    assert isinstance(figure, Figure) and figure.get_facecolor() == (1, 1, 1, 1)
    assert figure.get_figwidth() == WIDTH_IN <= 9.5 and figure.dpi == DPI == 100
    assert FONT >= 9
    texts = figure.findobj(lambda artist: hasattr(artist, "get_fontsize"))
    assert len(texts) > 5 and min(text.get_fontsize() for text in texts if text.get_text()) >= 9


# the object
@pytest.mark.parametrize("make", [double_buffer, two_workers, lambda: {"a": two_workers(), "b": two_workers()}])
def test_twice_in_a_row_gives_the_same(make):
    first, second = timeline(make()), timeline(make())
    assert first.text == second.text and first.png == second.png and first.alt == second.alt
    assert "0x" not in first.text


def test_a_users_style_changes_nothing():
    before = timeline(double_buffer()).png
    with plt.style.context("dark_background"), plt.rc_context({"font.size": 30, "hatch.linewidth": 5}):
        assert timeline(double_buffer()).png == before


def test_the_notebook_gets_picture_and_text_and_pyplot_gets_nothing():
    before = plt.get_fignums()
    picture = timeline(double_buffer(), title="Two buffers")
    data, metadata = picture._repr_mimebundle_()
    assert data["text/plain"] == picture.text == repr(picture)
    assert base64.b64decode(data["image/png"]) == picture.png
    assert "Two buffers" in metadata["image/png"]["alt"] and "actual 10.42 ms" in metadata["image/png"]["alt"]
    assert plt.get_fignums() == before


def test_the_critical_path_is_outlined_or_left_out(tmp_path):
    schedule = two_workers()
    marked, plain = panel_of(schedule), panel_of(schedule, critical=False)
    assert marked.critical.sum() == 3 and not plain.critical.any() and plain.path == ()
    assert "critical path" not in timeline(schedule, critical=False).text.split("\n", 2)[2]
    assert timeline(schedule).png != timeline(schedule, critical=False).png
    chosen = panel_of(schedule, critical=["A"])
    assert [chosen.label(index) for index in np.flatnonzero(chosen.critical)] == ["A"]
    timeline(schedule).figure.savefig(tmp_path / "schedule.svg")
    assert (tmp_path / "schedule.svg").stat().st_size > 1000


def test_kinds_of_tasks_follow_from_kind_or_resource():
    graph = nx.DiGraph()
    graph.add_node("a", duration=1, resource="h2d")
    graph.add_node("b", duration=1, resource="compute", kind="d2d")
    graph.add_node("c", duration=1, resource="link")
    panel = panel_of(dag.schedule(graph, {"h2d": 1, "compute": 1, "link": 1}))
    assert {panel.label(bar): int(code) for bar, code in enumerate(panel.kind)} == {
        "a": CODE["h2d"], "b": CODE["d2d"], "c": CODE["task"]}


def test_drawing_needs_neither_torch_nor_pandas_nor_pyplot_nor_widgets():
    program = ("import sys; from utils.timeline import timeline; unwanted = "
               "('torch', 'pandas', 'matplotlib.pyplot', 'ipywidgets'); print(sorted({*unwanted} & {*sys.modules}))")
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# names
def test_names_are_cut_by_columns():
    assert fit("矩阵乘法", 5) == "矩阵…" and columns(fit("矩阵乘法", 6)) == 6
    assert short_name("void at::native::vectorized_elementwise_kernel<4, float>(int, float)") == (
        "vectorized_elementwise_kernel")
    assert label_columns("gemm_kernel_long", 9, cut=True) == "gemm_ker…"
    assert label_columns("copy 10", 6, cut=False) == ""


def test_bars_that_touch_up_to_rounding_share_a_row():
    from utils.timeline.model import stack_rows

    begin = np.array([701.594, 749.694, 800.594]) - 701.594   # 48.1 and 99.0, give or take the last bit
    stop = np.append(begin[1:] + 1e-13, 120.0)
    assert stack_rows(np.zeros(3, dtype=np.int64), begin, stop).tolist() == [0, 0, 0]
    assert stack_rows(np.zeros(3, dtype=np.int64), begin, stop + 0.01).tolist() == [0, 1, 0]


def test_outlined_rows_of_a_trace_are_named_and_are_no_critical_path():
    picture = timeline(trace_of(("copy", "h2d", "h2d", 7, 0.0, 5.0), ("gemm", "kernel", "compute", 8, 5.0, 4.0)),
                       critical=[1])
    assert "outlined: gemm" in picture.text and "critical path" not in picture.text
    legend = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert "outlined" in legend and "critical path" not in legend


def test_a_stream_that_rests_in_the_window_is_left_out_if_another_of_its_engine_works():
    from utils.trace import Trace
    columns = {"name": ["a", "b", "c"], "kind": ["kernel", "kernel", "h2d"], "lane": ["compute", "compute", "h2d"],
               "stream": [0, 7, 0], "start_us": [0.0, 100.0, 0.0], "duration_us": [10.0, 50.0, 5.0],
               "bytes": [0, 0, 8], "correlation": [1, 2, 3]}
    trace = Trace.from_columns(columns)
    whole, part, none = timeline(trace).text, timeline(trace, start=90, stop=160).text, timeline(trace, stop=20).text
    assert "compute stream 0" in whole and "compute stream 7" in whole
    assert "compute stream 0" not in part and "compute stream 7" in part
    assert "H2D stream 0" in part                           # its engine's only stream: that it rests is worth seeing
    assert "compute stream 0" in none and "compute stream 7" not in none
