"""Saving a trace: what was saved loads equal, viewers get what they expect, files are whole or absent."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import small

from utils.trace import KINDS, Trace

times = st.integers(0, 10**12)
tables = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8"), max_size=12),
        st.sampled_from(KINDS),
        st.integers(-1, 50),
        times,
        times,
        st.integers(0, 2**50),
        st.integers(-1, 2**40),
        st.integers(-1, 9),
        st.integers(0, 5),
    ),
    max_size=12,
)
FIELDS = ("name", "kind", "stream", "start_us", "duration_us", "bytes", "correlation", "device", "graph")


def as_columns(rows):
    columns = {field: [line[at] for line in rows] for at, field in enumerate(FIELDS)}
    for field in ("start_us", "duration_us"):
        columns[field] = [nano / 1000 for nano in columns[field]]
    return columns


@given(tables, tables, st.sampled_from([".json", ".json.gz"]))
def test_what_was_saved_loads_equal(tmp_path_factory, rows, notes, suffix):
    trace = Trace.from_columns(as_columns(rows), annotations=as_columns(notes))
    path = tmp_path_factory.mktemp("saved") / f"t{suffix}"
    trace.save(path)
    again = Trace.load(path)
    assert again == trace
    assert again.columns["start_us"].tolist() == sorted(as_columns(rows)["start_us"])
    assert len(again.annotations) == len(notes)


@given(tables)
def test_busy_overlap_and_uncovered_fit_together(rows):
    trace = Trace.from_columns(as_columns(rows))
    kernels, copies = trace.busy_us("kernel"), trace.busy_us("h2d")
    assert kernels <= sum(trace.columns["duration_us"]) + 1e-3
    assert kernels <= trace.stop_us - trace.start_us + 1e-3
    assert trace.overlap_us("h2d", "kernel") + trace.uncovered_us("h2d", "kernel") == pytest.approx(copies)
    assert trace.busy_us(["h2d", "kernel"]) == pytest.approx(kernels + trace.uncovered_us("h2d", "kernel"))


def test_a_saved_file_is_what_viewers_expect(tmp_path):
    trace = Trace.from_columns(
        {
            "name": ["launch", "gemm", "wait", "copy"],
            "kind": ["host", "kernel", "sync", "h2d"],
            "stream": [None, 7, 7, 13],
            "start_us": [0, 1.5, 2, 0.001],
            "duration_us": [1, 2.25, 1, 0.5],
            "correlation": [3, 3, None, None],
        }
    )
    trace.save(tmp_path / "t.json.gz")
    data = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    events = data["traceEvents"]
    names = {
        (event["pid"], event["args"]["name"])
        for event in events
        if event["name"] in ("process_name", "thread_name")
    }
    assert {(0, "device 0"), (0, "stream 7"), (0, "stream 13"), (0, "stream 7 waits"), (1_000_000, "host")} <= names
    gemm = next(event for event in events if event["name"] == "gemm")
    assert (gemm["ts"], gemm["dur"], gemm["cat"], gemm["pid"], gemm["tid"]) == (1.5, 2.25, "kernel", 0, 7)
    arrows = [(event["ph"], event["id"], event["ts"]) for event in events if event["name"] == "ac2g"]
    assert arrows == [("s", 3, 0.0), ("f", 3, 1.5)]
    assert all(isinstance(event["pid"], int) and isinstance(event["tid"], int) for event in events)


def test_saving_replaces_a_file_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "t.json"
    small().save(path)
    before = path.read_bytes()
    monkeypatch.setattr("utils.trace.writing.json.dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        small(start_us=[1, 2, 3, 4]).save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]


def test_saving_twice_gives_the_same_bytes(tmp_path):
    for name in ("a.json.gz", "b.json.gz"):
        small().save(tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[1] / "traces").glob("*.json.gz")), ids=lambda path: path.name
)
def test_a_recorded_trace_survives_saving(tmp_path, path):
    trace = Trace.load(path)
    assert 0 < trace.busy_us("kernel") <= trace.stop_us
    trace.save(tmp_path / "again.json.gz")
    assert Trace.load(tmp_path / "again.json.gz") == trace
