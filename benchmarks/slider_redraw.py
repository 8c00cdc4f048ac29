"""Time of one slider step: from the new value to the finished PNG, for schedules of about 200 bars.

    python benchmarks/slider_redraw.py            # prints the table
    python benchmarks/slider_redraw.py --record   # also writes benchmarks/results/slider_redraw.md

Beside it stand what one would write first, a fresh matplotlib figure per step (``timeline().png``), and each step with
a new time axis, which the sliders avoid while the bars still fit.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ipywidgets
import matplotlib
import networkx as nx
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from utils import dag
from utils.lessons import import_lesson
from utils.sliders import Control, ScheduleSliders, TimelineSliders
from utils.timeline import timeline
from utils.trace import Trace

RESULT = Path(__file__).parent / "results" / "slider_redraw.md"
LAYERS = 100            # one copy and one kernel each: 200 bars
SMALL_LAYERS = 6        # a graph that is worth drawing
SPANS = 100_000         # of the trace that is drawn once
STEPS = 40
LIMIT_MS = 100.0


def double_buffer(layers: int) -> nx.DiGraph:
    """Copies in a row, kernels in a row, kernel i after copy i, copy i after kernel i − 2."""
    graph = nx.DiGraph()
    for layer in range(layers):
        graph.add_node(f"c{layer}", duration=3, resource="h2d")
        graph.add_node(f"k{layer}", duration=2, resource="compute")
    for layer in range(layers):
        graph.add_edge(f"c{layer}", f"k{layer}")
        if layer > 0:
            graph.add_edges_from([(f"c{layer - 1}", f"c{layer}"), (f"k{layer - 1}", f"k{layer}")])
        if layer > 1:
            graph.add_edge(f"k{layer - 2}", f"c{layer}")
    return graph


def independent(tasks: int) -> nx.DiGraph:
    """Tasks without edges: as many labelled bars as there are tasks."""
    graph = nx.DiGraph()
    for task in range(tasks):
        graph.add_node(f"t{task}", duration=3 + task % 4)
    return graph


def long_trace(spans: int) -> Trace:
    """Short spans side by side on four lanes, 1 second long."""
    random = np.random.default_rng(0)
    lane = np.array(["host", "h2d", "compute", "d2h"])[np.arange(spans) % 4]
    slot_us = 1e6 / (spans / 4)
    return Trace.from_columns({
        "name": [f"void kernel<{index % 1000}>(float)" for index in range(spans)],
        "kind": np.where(lane == "compute", "kernel", lane), "lane": lane, "stream": np.arange(spans) % 4,
        "start_us": np.arange(spans) // 4 * slot_us, "duration_us": random.uniform(0, slot_us, spans),
        "bytes": np.zeros(spans, dtype=np.int64), "correlation": np.arange(spans)})


def draw(trace: Trace) -> int:
    """Text and picture, as a notebook asks for them; returns the bytes made."""
    picture = timeline(trace)
    return len(picture.text) + len(picture.png)


def step_times(step: Callable[[int], object]) -> list[float]:
    """Milliseconds of each of STEPS calls, after two that do not count."""
    times = []
    for index in range(STEPS + 2):
        begun = time.perf_counter()
        step(index)
        times.append(1e3 * (time.perf_counter() - begun))
    return times[2:]


def pipeline_sliders() -> TimelineSliders:
    """Lesson 04's sliders with as many layers as they allow: 24 copies, 24 products and 48 launches."""
    pipeline = import_lesson("04_double_buffered_onload").pipeline
    return TimelineSliders([Control("ratio", 0.1, 4, 1.0, step=0.01), Control("slots", 1, 6, 2, whole=True)],
                           lambda ratio, slots: pipeline(ratio, 24, slots, launch_us=200, product_ms=3.3))


def cases() -> dict[str, Callable[[int], object]]:
    """What is timed, by the words of the table."""
    queues = {"h2d": 1, "compute": 1}
    graph, small = double_buffer(LAYERS), double_buffer(SMALL_LAYERS)
    moving = ScheduleSliders(graph, queues, tasks={"c50": (0, 20)}, draw_graph=False)
    labelled = ScheduleSliders(independent(2 * LAYERS), 8, tasks={"t0": (0, 20)}, draw_graph=False)
    drawn = ScheduleSliders(small, queues, tasks={"c3": (0, 20)})
    workers = ScheduleSliders(independent(2 * LAYERS), 4, tasks=[], workers=(4, 8), draw_graph=False)

    pipeline = pipeline_sliders()

    def fresh(index: int) -> bytes:
        graph.nodes["c50"]["duration"] = 3 + index % 5
        return timeline(dag.schedule(graph, queues)).png

    return {
        "200 bars on 2 lanes, one task time moves": lambda index: moving.set(c50=3 + index % 5),
        "200 labelled bars on 8 lanes, one task time moves": lambda index: labelled.set(t0=3 + index % 5),
        "200 labelled bars, number of workers moves (new lanes, new frame)":
            lambda index: workers.set(workers=4 + index % 5),
        "graph of 12 tasks above its schedule, one task time moves": lambda index: drawn.set(c3=3 + index % 5),
        "lesson 04's pipeline, 24 layers with their launches, the copy time moves":
            lambda index: pipeline.set(ratio=0.8 + 0.01 * (index % 5)),
        "lesson 04's pipeline, number of slots moves": lambda index: pipeline.set(slots=2 + index % 5),
        "for comparison: 200 bars, a fresh figure for each step": fresh,
    }


def table() -> tuple[str, float]:
    """The rows in Markdown, and the slowest median of the sliders."""
    lines, slowest = ["| step | median ms | slowest ms |", "|---|---|---|"], 0.0
    for name, step in cases().items():
        times = step_times(step)
        lines.append(f"| {name} | {statistics.median(times):.0f} | {max(times):.0f} |")
        if not name.startswith("for comparison"):
            slowest = max(slowest, statistics.median(times))
    return "\n".join(lines), slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the result beside this script")
    record = parser.parse_args().record
    rows, slowest = table()
    trace = long_trace(SPANS)
    drawing_ms = statistics.median(step_times(lambda _: draw(trace)))
    verdict = (f"Slowest median of the sliders {slowest:.0f} ms; the limit is {LIMIT_MS:.0f} ms. "
               f"A trace of {SPANS:,} spans is drawn, text and picture, in {drawing_ms:.0f} ms (median).")
    print(f"{rows}\n\n{verdict}")
    if record:
        made_with = (f"Python {platform.python_version()}, matplotlib {matplotlib.__version__}, ipywidgets "
                     f"{ipywidgets.__version__}, {platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores, "
                     f"{datetime.date.today():%Y-%m-%d}")
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(
            "# Time of one slider step\n\nKernel time from the new value to the finished PNG, schedule included; "
            f"{STEPS} steps each. Made by `python benchmarks/slider_redraw.py --record`.\n\n{rows}\n\n{verdict}\n\n"
            f"{made_with}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
