"""Memory under a timeline: the staircase that was recorded, the budget, peaks in words, one scale for several runs."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb

from utils import dag, simgpu
from utils.sliders import Control, TimelineSliders
from utils.timeline import timeline
from utils.timeline.adapt import Options, panels_of
from utils.timeline.kinds import INK, KINDS
from utils.timeline.lanes import Scale, panel_height
from utils.timeline.memory import MemoryPanel, scale_for, unit_for
from utils.timeline.memory_picture import ALLOCATED, HELD, OVER, OVER_HATCH, memory_artists
from utils.timeline.memory_text import ALLOCATED_CHAR, BUDGET_CHAR, HELD_CHAR, OVER_CHAR, PART_CHAR
from utils.timeline.names import columns
from utils.trace import Trace

MIB = 2**20


def trace_of(*levels, held=None, stop=100.0, name="", reserved=None):
    """A trace of one copy and one kernel until ``stop``, and of (us, MiB) levels."""
    us, counts = zip(*levels, strict=True)
    memory = {"us": list(us), "bytes": [int(count * MIB) for count in counts]}
    if held is not None:
        memory["held_bytes"] = [int(count * MIB) for count in held]
    if reserved is not None:
        memory["reserved_bytes"] = [reserved * MIB] * len(us)
    return Trace.from_columns(
        {"name": ["Memcpy HtoD", "gemm"], "kind": ["h2d", "kernel"], "stream": [13, 7], "start_us": [10.0, 40.0],
         "duration_us": [30.0, stop - 40.0]}, memory=memory, name=name)


def stairs():
    return trace_of((0, 0), (20, 6), (40, 10), (60, 8), (80, 2))


def panel_of(x, **options):
    return panels_of(x, Options(memory=True, **options))[0]


def chart(text):
    """The rows of the first chart of a text, without frame and labels."""
    rows = text.splitlines()
    first = next(index for index, row in enumerate(rows) if row.startswith("memory") and "|" in row)
    last = next(index for index in range(first, len(rows)) if "|" not in rows[index] or not (
        rows[index].startswith(" ") or index == first))
    return [row.split("|")[1] for row in rows[first:last]]


def artists_of(panel, pixels=780.0):
    scale = Scale(panel.window, pixels, "us", 1.0)
    return memory_artists(panel.memory, panel.window, scale, panel_height(panel))


def area(artist, panel):
    """Bytes times time under a collection's outlines."""
    total = 0.0
    for path in artist.get_paths():
        x, y = path.vertices.T
        total += abs((x[:-1] * y[1:] - x[1:] * y[:-1]).sum() + x[-1] * y[0] - x[0] * y[-1]) / 2
    return total / 0.95 * panel.memory.scale.top


# in words
def test_text_of_a_small_run():
    assert timeline(stairs(), budget=9 * MIB, title="Stairs").text == """\
Stairs
actual 90 µs, uncovered copies 30 µs
peak memory 10 MiB, budget 9 MiB: over by 1 MiB
H2D stream 13    |......[Memcpy HtoD>>>>>>.....................................|
compute stream 7 |........................[gemm################################|
memory    10 MiB |========================XXXXXXXXXXXXX========================|
           8 MiB |                        @@@@@@@@@@@@@@@@@@@@@@@@@            |
           6 MiB |            @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@            |
           4 MiB |            @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@            |
           2 MiB |            @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
µs                0           20          40          60          80
key: # kernel, > copy to device, : busy for less than half, . idle, [ a bar
  begins
@ memory allocated, = budget, X over it, : less than half of the row

lane                spans          busy   idle
H2D stream 13           1         30 µs   70 %
compute stream 7        1         60 µs   40 %
memory                     peak             at         budget       reserved
in use                   10 MiB          40 µs          9 MiB        unknown"""


@pytest.mark.parametrize(
    "budget, words",
    [(None, "peak memory 10 MiB"), (12 * MIB, "peak memory 10 MiB, budget 12 MiB: under by 2 MiB"),
     (10 * MIB, "peak memory 10 MiB, budget 10 MiB: just met"),
     (10 * MIB - 100, "peak memory 10 MiB, budget 10 MiB: over by 100 B"),
     (8.125 * MIB, "peak memory 10 MiB, budget 8.125 MiB: over by 1.875 MiB"),
     (8 * 2**30, "peak memory 10 MiB, budget 8 GiB: under by 7.99 GiB")],
)
def test_peak_and_budget_are_told_with_their_difference_as_printed(budget, words):
    picture = timeline(stairs(), memory=True, budget=budget)
    assert words in picture.text.splitlines() and words in picture.alt


def test_a_budget_alone_asks_for_memory_and_without_either_nothing_changes():
    assert timeline(stairs(), budget=9 * MIB).text == timeline(stairs(), memory=True, budget=9 * MIB).text
    plain = Trace.from_columns({name: values for name, values in stairs().columns.items() if name != "lane"})
    assert timeline(stairs()).text == timeline(plain).text and "memory" not in timeline(plain).text


def test_held_blocks_count_as_in_use_and_are_told_apart():
    trace = trace_of((0, 4), (50, 2), held=[0, 4], reserved=20)
    text = timeline(trace, memory=True).text
    assert "peak memory 6 MiB (4 MiB allocated)" in text and "another stream still needs it" in text
    ends = [row[0] + row[-1] for row in chart(text)]
    assert ends == [" " + HELD_CHAR, ALLOCATED_CHAR + HELD_CHAR, ALLOCATED_CHAR * 2]
    assert "20 MiB" in text.splitlines()[-1] and "unknown" not in text
    assert "still needs" not in timeline(trace_of((0, 4)), memory=True).text


def test_a_window_keeps_the_peak_of_the_run_and_says_its_own():
    text = timeline(stairs(), budget=9 * MIB, start=65, stop=95).text
    assert "peak memory 10 MiB, budget 9 MiB: over by 1 MiB; in the part shown at most 8 MiB" in " ".join(text.split())
    assert text.splitlines()[-1].split()[:5] == ["in", "use", "8", "MiB", "65"]
    assert OVER_CHAR not in "".join(chart(text))
    late = timeline([trace_of((0, 1), stop=50), trace_of((0, 1), stop=200)], memory=True, start=120, stop=150)
    assert late.text.count("memory: no record in the part shown") == 1 and late.png


# errors
@pytest.mark.parametrize("budget", [-1, 0, float("nan"), float("inf"), "8 GiB", True, [1]])
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(ValueError, match=r"budget is .*: give a number of bytes above 0"):
        timeline(stairs(), budget=budget)


def test_runs_without_memory_are_refused_by_name():
    graph = nx.DiGraph()
    graph.add_node("a", duration=1)
    bare = Trace.from_columns({"name": ["k"], "kind": ["kernel"], "start_us": [0], "duration_us": [4]}, name="bare")
    with pytest.raises(ValueError, match=r"bare: this trace has no record .*record\(fn, memory=True\)"):
        timeline(bare, memory=True)
    with pytest.raises(ValueError, match=r"plan has no memory over time, only tasks"):
        timeline({"real": stairs(), "plan": dag.schedule(graph)}, memory=True)
    with pytest.raises(ValueError, match="a schedule has no memory over time"):
        timeline(dag.schedule(graph), budget=MIB)
    with pytest.raises(ValueError, match="budget names 'b', which is no run; there are 'a'"):
        timeline({"a": stairs()}, budget={"b": MIB})


# the picture
def test_the_drawn_area_is_what_was_in_use_over_time():
    panel = panel_of(trace_of((0, 4), (50, 2), (75, 6), held=[0, 3, 0]), budget=5.5 * MIB)
    shapes = {tuple(artist.get_facecolor()[0][:3]): artist for artist in artists_of(panel)
              if isinstance(artist, PolyCollection)}
    found = {name: area(shapes[to_rgb(colour)], panel) / MIB
             for name, colour in (("allocated", ALLOCATED), ("held", HELD), ("over", OVER))}
    assert found == pytest.approx({"allocated": 4 * 50 + 2 * 25 + 6 * 25, "held": 3 * 25, "over": 0.5 * 25})
    assert shapes[to_rgb(OVER)].get_hatch() == OVER_HATCH and not shapes[to_rgb(ALLOCATED)].get_hatch()


def test_the_mark_stands_on_the_peak_and_the_budget_is_a_dashed_line():
    panel = panel_of(stairs(), budget=9 * MIB)
    total, scale = panel_height(panel), panel.memory.scale
    line, mark = (artist for artist in artists_of(panel) if hasattr(artist, "get_xdata"))
    at = total - 0.95 * np.array([9, 10]) * MIB / scale.top
    assert line.get_linestyle() == "--" and list(line.get_ydata()) == pytest.approx([at[0]] * 2)
    assert mark.get_xdata() == [50.0] and mark.get_ydata()[0] == pytest.approx(at[1], abs=0.05)
    texts = [artist.get_text() for artist in artists_of(panel) if hasattr(artist, "get_text")]
    assert texts == ["budget 9 MiB", "peak 10 MiB"]
    legends = timeline(stairs(), budget=9 * MIB).figure.legends
    legend = [text.get_text() for entry in legends for text in entry.get_texts()]
    assert legend[-2:] == ["memory allocated", "over budget"] and "kernel" in legend


def test_labels_can_be_read_on_the_colours_of_memory():
    def luminance(colour):
        channels = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return 0.2126 * channels[0] + 0.7152 * channels[1] + 0.0722 * channels[2]

    for colour in (ALLOCATED, HELD, OVER):
        assert (luminance(colour) + 0.05) / (luminance(INK) + 0.05) >= 4.5
    assert {ALLOCATED, HELD, OVER}.isdisjoint(kind.colour for kind in KINDS)
    chars = [ALLOCATED_CHAR, HELD_CHAR, OVER_CHAR, BUDGET_CHAR, PART_CHAR]
    assert len(set(chars)) == 5


def test_several_runs_share_the_scale_and_have_their_own_budgets():
    runs = {"small": trace_of((0, 3)), "large": trace_of((0, 30), stop=60.0)}
    panels = panels_of(runs, Options(memory=True, budget={"large": 20 * MIB}))
    assert panels[0].memory.scale == panels[1].memory.scale and panels[0].memory.scale.top == 30 * MIB
    assert [panel.memory.budget for panel in panels] == [None, 20 * MIB]
    text = timeline(runs, budget={"large": 20 * MIB}).text
    assert "peak memory 3 MiB\n" in text and "peak memory 30 MiB, budget 20 MiB: over by 10 MiB" in text
    assert text.count("memory  ") >= 4 and max(columns(line) for line in text.splitlines()) <= 80
    assert [set(row) for row in chart(text)] == [{" "}, {" "}, {PART_CHAR}]      # 3 MiB on a scale of 10 MiB a row
    figure = timeline(runs, memory=True).figure
    assert len({axes.get_ylim() for axes in figure.axes}) == 1


def test_the_axis_covers_the_record_and_memory_ends_with_its_run():
    panel = panel_of(trace_of((-5, 2), (120, 1)))
    assert panel.window == (-5, 120)
    text = timeline({"a": trace_of((0, 4), stop=50), "b": trace_of((0, 4))}, memory=True).text
    assert chart(text)[-1].rstrip() == chart(text)[-1][:len(chart(text)[-1]) // 2 + 1].rstrip()


@pytest.mark.parametrize("trace", [
    trace_of((0, 0)), trace_of((0, 2**20)), trace_of((0, 0), (0, 5), (0, 0)), trace_of((99, 1), (100, 3)),
    Trace.from_columns({"name": [], "kind": [], "start_us": [], "duration_us": []}, memory={"us": [0], "bytes": [7]}),
])
def test_odd_records_have_a_picture_and_a_narrow_text(trace):
    for options in ({"memory": True}, {"budget": 3.5 * MIB}, {"memory": True, "lanes": []}):
        picture = timeline(trace, **options)
        assert picture.png.startswith(b"\x89PNG") and max(columns(line) for line in picture.text.splitlines()) <= 80
        assert "peak memory" in picture.text and "(no spans)" not in picture.text


def test_a_moment_of_no_duration_is_in_the_picture_and_in_the_text():
    trace = trace_of((0, 1), (50, 9), (50, 1))
    assert "peak memory 9 MiB" in timeline(trace, memory=True).text
    assert sum(row.count(ALLOCATED_CHAR) for row in chart(timeline(trace, memory=True).text)[:-1]) >= 3


# long runs, many steps
levels = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), min_size=1, max_size=12)


@settings(max_examples=300)
@given(levels, st.integers(1, 6), st.integers(0, 8), st.integers(1, 8))
def test_each_cell_shows_the_most_that_was_in_use_in_it(rows, cells, start, length):
    rows = sorted(rows, key=lambda row: row[0])
    time, counts = np.array([*(row[0] for row in rows), 13.0]), np.array([*(row[1] for row in rows), 0])
    memory = MemoryPanel(time, counts, counts, counts)
    edges = np.linspace(start, start + length, cells + 1)
    expected = []
    for low, high in pairwise(edges):
        inside = counts[(time >= low) & ((time < high) | ((high == edges[-1]) & (time == high)))]
        before = counts[time <= low]
        expected.append(max([*inside.tolist(), *before[-1:].tolist()], default=0))
    assert memory.highest(counts, edges).tolist() == expected
    shown, peak = memory.peak_in((start, start + length)), max(expected)
    assert (shown[2] if shown else 0) == peak


def test_a_long_run_keeps_its_peak_in_a_picture_of_few_points():
    random = np.random.default_rng(0)
    counts = random.integers(0, 100, 50_000)
    counts[12_345] = 1000
    trace = trace_of(*zip(np.linspace(0, 1e5, 50_000).tolist(), counts.tolist(), strict=True), stop=1e5)
    panel = panel_of(trace)
    stairs = panel.memory.stairs(panel.window, 780)
    assert stairs.in_use.max() == 1000 * MIB and len(stairs.edges) == 781
    assert sum(len(path.vertices) for artist in artists_of(panel) if isinstance(artist, PolyCollection)
               for path in artist.get_paths()) < 4000
    assert len(timeline(trace, memory=True).png) < 100_000


def test_sliders_move_memory_over_a_frame_that_stays():
    def build(mib, budget):
        return timeline(trace_of((0, mib), (50, 1)), budget=budget * MIB)

    view = TimelineSliders([Control("mib", 1, 10, 9, whole=True), Control("budget", 1, 10, 10, whole=True)], build)
    frame = view._stage._frame
    assert "budget 10 MiB: under by 1 MiB" in view.text
    view.set(mib=10, budget=6)
    # the scale is that of the largest value: the frame is kept while it fits
    assert "budget 6 MiB: over by 4 MiB" in view.text and view._stage._frame is frame
    view.set(mib=1, budget=1)
    assert view._stage._frame is not frame and view.redraws == 3


@pytest.mark.parametrize("count, name", [(0, "B"), (1023, "B"), (1024, "KiB"), (MIB, "MiB"), (2**32 - 1, "MiB"),
                                         (2**32, "GiB")])
def test_units_of_memory(count, name):
    assert unit_for(count).name == name


@given(st.integers(0, 2**50))
def test_every_count_fits_its_scale_with_few_parts(count):
    scale = scale_for(count)
    assert count <= scale.top * (1 + 1e-9) and 1 <= scale.parts <= 5 and scale.top <= max(3 * count, 3 * scale.step)


# the simulated device
def test_what_the_simulated_device_shows_is_what_it_counts():
    with simgpu.session(simgpu.RTX_5060_LAPTOP, numerics="shapes") as gpu:
        kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        for _ in range(3):
            simgpu.host_work(1000)
            extra = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
            simgpu.host_work(1000)
            del extra
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
        text = timeline(gpu.trace(), budget=80 * MIB).text
        assert f"peak memory {peak // MIB} MiB, budget 80 MiB: over by 16 MiB" in text and kept is not None
    top = chart(text)[0]
    assert set(top) == {" ", OVER_CHAR}
    assert [len(piece) for piece in top.split()] == pytest.approx([len(top) / 6] * 3, abs=1.5)
