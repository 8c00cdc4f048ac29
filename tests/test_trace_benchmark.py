"""The generated file of benchmarks/trace_load.py: the same every time, and read for what was put into it."""

import importlib.util
import json
from pathlib import Path

import pytest

from utils.trace import Trace

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "trace_load.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("trace_load", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name, absolute", [("t.json", False), ("t.json.gz", False), ("t.json", True)])
def test_the_file_holds_what_was_asked_for(tmp_path, benchmark, name, absolute):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        benchmark.write_trace(tmp_path / folder / name, 1003, absolute=absolute)
    trace = Trace.load(tmp_path / "a" / name)
    assert trace == Trace.load(tmp_path / "b" / name)
    if name == "t.json":
        assert len(json.loads((tmp_path / "a" / name).read_text())["traceEvents"]) == 1003
    copies = [55.0 - 0.037 * (step % 11) for step in range(int((trace.columns["kind"] == "h2d").sum()))]
    assert trace.busy_us("h2d") == pytest.approx(sum(copies), abs=1e-6)
    assert trace.streams() == (7, 13, 20)


def test_the_page_tells_machine_versions_and_limits(benchmark):
    run = {"load_s": 2.0, "measure_s": 0.5, "import_s": 0.1, "processor_s": 2.4, "peak_gb": 0.4, "found": "all of it"}
    slow = {**run, "load_s": 4.0, "peak_gb": 0.6}
    page = benchmark.report([("utils.trace", "json", [run, slow, run])], {"json": 231.0}, 1_000_000, "")
    assert "| utils.trace | json | 231 | 2.00 | 0.50 | **2.50** | 2.40 | 0.60 |" in page
    assert "Limit for `utils.trace`: 6 s and 2.5 GB. Its slowest run: 4.50 s; its highest peak: 0.60 GB." in page
    assert "- machine: " in page and "- date: " in page and "orjson" in page


def test_the_recorded_result_is_within_the_limits():
    page = (SCRIPT.parent / "results" / "trace_load.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| utils.trace")]
    assert len(rows) == 3 and "1,000,000 events" in page and "| HolisticTraceAnalysis | json |" in page
    assert all(float(row[6].strip(" *")) <= 6.0 and float(row[8]) <= 2.5 for row in rows)
