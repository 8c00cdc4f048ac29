"""What a trace says about itself: kinds, lanes, streams and measures, from files and from columns."""


import numpy as np
import pytest
from trace_files import copy, kernel, row, small, text, write

from utils.trace import Trace, TraceError

COLUMNS = ["name", "kind", "lane", "stream", "start_us", "duration_us", "bytes", "correlation"]


def test_measures_take_the_union_of_spans():
    trace = small()
    assert trace.busy_us("h2d") == 20.0
    assert trace.busy_us("kernel") == 25.0
    assert trace.overlap_us("h2d", "kernel") == 5.0
    assert trace.uncovered_us("h2d", "kernel") == 15.0
    assert trace.uncovered_us("kernel", "h2d") == 20.0
    assert trace.busy_us(["h2d", "kernel"]) == 40.0
    assert trace.idle_share("kernel") == pytest.approx(1 - 25 / 35)
    assert trace.idle_share(["h2d", "kernel"]) == pytest.approx(0.2)


def test_a_window_cuts_spans_and_sets_the_idle_share():
    trace = small()
    assert trace.busy_us("kernel", start=20, stop=45) == 15.0
    assert trace.busy_us("kernel", stop=20) == 5.0
    assert trace.overlap_us("h2d", "kernel", start=16, stop=18) == 2.0
    assert trace.uncovered_us("h2d", "kernel", start=5) == 10.0
    assert trace.idle_share("kernel", start=0, stop=100) == 0.75
    assert trace.idle_share("memset", start=0, stop=100) == 1.0


def test_spans_side_by_side_count_once():
    trace = small(start_us=[0, 5, 0, 0], duration_us=[10, 10, 20, 20])
    assert trace.busy_us("kernel") == 20.0
    assert trace.busy_us("h2d") == 15.0
    assert trace.idle_share("kernel") == 0.0


@pytest.mark.parametrize(
    "ask, message",
    [
        (lambda trace: trace.busy_us("gpu"), "unknown kind of span 'gpu'"),
        (lambda trace: trace.busy_us([]), "unknown kind of span none"),
        (lambda trace: trace.busy_us("kernel", start=5, stop=1), "from 5 to 1 us ends before it starts"),
        (lambda trace: trace.idle_share("kernel", start=1000), "ends before it starts"),
        (lambda trace: trace.idle_share("memset"), "no span of 'memset'"),
        (lambda trace: trace.only(device=3), "no span on device 3"),
        (lambda trace: trace.save("trace.txt"), "ends in .json or .json.gz"),
    ],
)
def test_a_wrong_question_gets_a_clear_answer(ask, message):
    with pytest.raises(ValueError, match=message):
        ask(small())


def test_spans_are_a_table_with_the_agreed_columns():
    table = small().spans
    assert list(table.columns) == COLUMNS
    assert list(table["lane"]) == ["h2d", "h2d", "compute", "compute"]
    assert table["stream"].dtype == np.int64 and table["start_us"].dtype == np.float64
    assert table["bytes"].sum() == 0 and set(table["correlation"]) == {-1}


def test_columns_come_back_as_they_went_in():
    trace = small()
    assert list(trace.columns) == COLUMNS
    assert Trace.from_columns(trace.columns) == trace
    assert trace != small(name=["c0", "c1", "k0", "other"])
    assert trace != small(start_us=[0.0, 10.0, 15.0, 40.001])


def test_columns_are_sorted_by_start_and_none_stands_for_the_default():
    trace = small(start_us=[30, 20, 10, 0], stream=[None, 2, 3, 4], correlation=[1, None, 3, 4])
    assert list(trace.columns["name"]) == ["k1", "k0", "c1", "c0"]
    assert trace.columns["stream"].tolist() == [4, 3, 2, -1]
    assert trace.columns["correlation"].tolist() == [4, 3, -1, 1]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kind": ["h2d", "h2d", "kernel", "gpu"]}, "unknown kind 'gpu'"),
        ({"lane": ["h2d", "h2d", "compute", "gpu"]}, "unknown lane 'gpu'"),
        ({"stream": [1, 2, 3]}, "unequal length"),
        ({"stream": [1, 2, 3, "a"]}, "stream is 'a'"),
        ({"stream": [1, 2, 3, 2**70]}, "64 bits"),
        ({"start_us": [0, 1, 2, float("nan")]}, "start_us is nan in row 3"),
        ({"start_us": [0, 1, 2, 1e300]}, "below 104 days"),
        ({"duration_us": [1, -2, 1, 1]}, r"duration_us of 'c1' \(row 1\) is -2"),
        ({"durations": [1, 1, 1, 1]}, "unknown column 'durations'"),
    ],
)
def test_bad_columns_are_refused(changes, message):
    with pytest.raises(TraceError, match=message):
        small(**changes)
    with pytest.raises(TraceError, match="no column 'kind'"):
        Trace.from_columns({"name": [], "start_us": [], "duration_us": []})


def test_an_empty_trace_is_a_trace(tmp_path):
    trace = Trace.load(write(tmp_path, text([])))
    assert len(trace) == 0 and trace.devices == () and trace.streams() == ()
    assert trace.busy_us("kernel") == trace.overlap_us("h2d", "kernel") == trace.start_us == trace.stop_us == 0.0
    assert list(trace.spans.columns) == COLUMNS
    trace.save(tmp_path / "again.json")
    assert Trace.load(tmp_path / "again.json") == trace


def test_every_category_finds_its_kind_and_lane(tmp_path):
    rows = [
        row("cpu_op", "aten::mm", "10.0", pid=652, tid=652),
        row("cuda_runtime", "cudaLaunchKernel", "11.0", correlation=5),
        row("cuda_driver", "cuLaunchKernelEx", "12.0", correlation=6),
        kernel("13.0", correlation=5),
        copy("14.0", correlation=9),
        copy("15.0", name="Memcpy DtoH (Device -> Pageable)"),
        copy("16.0", name="Memcpy DtoD (Device -> Device)"),
        row("gpu_memset", "Memset (Device)", "17.0", stream=7, device=0, bytes=4),
        row("cuda_sync", "Stream Sync", "18.0", tid=1, stream=7),
        row("cuda_sync", "Context Sync", "19.0", tid=1, stream=-1),
    ]
    trace = Trace.load(write(tmp_path, text(rows)))
    assert trace.columns["kind"].tolist() == ["host"] * 3 + [
        "kernel",
        "h2d",
        "d2h",
        "d2d",
        "memset",
        "sync",
        "sync",
    ]
    assert trace.columns["lane"].tolist() == ["host"] * 3 + [
        "compute",
        "h2d",
        "d2h",
        "compute",
        "compute",
        "sync",
        "sync",
    ]
    assert trace.columns["stream"].tolist() == [-1, -1, -1, 7, 13, 13, 13, 7, 7, -1]
    assert trace.columns["bytes"].tolist() == [0, 0, 0, 0, 1024, 1024, 1024, 4, 0, 0]
    assert trace.columns["correlation"].tolist() == [-1, 5, 6, 5, 9, -1, -1, -1, -1, -1]
    assert trace.busy_us("kernel") == 1.0 and trace.busy_us("compute") == 3.0 and trace.busy_us("sync") == 2.0
    assert trace.streams() == (7, 13) and trace.streams("d2h") == (13,)


@pytest.mark.parametrize(
    "name, kind",
    [
        ("Memcpy HtoD (Pageable -> Device)", "h2d"),
        ("Memcpy HtoA (Pinned -> Array)", "h2d"),
        ("Memcpy DtoH (Device -> Pinned)", "d2h"),
        ("Memcpy AtoH (Array -> Pageable)", "d2h"),
        ("Memcpy PtoP (Device -> Device)", "d2d"),
        ("Memcpy DtoA (Device -> Array)", "d2d"),
        ("Memcpy HtoH (Pinned -> Pageable)", "host"),
        ("memcpy htod (pinned -> device)", "h2d"),
        ("Memcpy Unknown (Pinned -> Device)", "h2d"),
        ("Copy (Device -> Pinned)", "d2h"),
    ],
)
def test_a_copy_is_told_by_its_name(tmp_path, name, kind):
    trace = Trace.load(write(tmp_path, text([copy("1.0", name=name)])))
    assert trace.columns["kind"].tolist() == [kind]


def test_host_time_is_counted_once_for_nested_calls(tmp_path):
    rows = [
        row("cpu_op", "aten::matmul", "0.0", "100.0"),
        row("cpu_op", "aten::mm", "10.0", "80.0"),
        row("cuda_runtime", "cudaLaunchKernel", "20.0", "30.0"),
        row("cpu_op", "other thread", "50.0", "100.0", tid=2),
    ]
    assert Trace.load(write(tmp_path, text(rows))).busy_us("host") == 150.0


def test_annotations_are_kept_beside_the_work(tmp_path):
    rows = [
        kernel("10.0", "5.0"),
        row("user_annotation", "layer 3", "8.0", "20.0", pid=652, tid=652),
        row("gpu_user_annotation", "layer 3", "10.0", "50.0", stream=7, device=0),
    ]
    trace = Trace.load(write(tmp_path, text(rows)))
    assert len(trace) == 1 and trace.busy_us("compute") == 5.0
    assert trace.annotations["name"].tolist() == ["layer 3", "layer 3"]
    assert trace.annotations["lane"].tolist() == ["host", "compute"]
    assert trace.annotations["start_us"].tolist() == [-2.0, 0.0]


def test_graph_replays_keep_their_graph_and_share_a_launch(tmp_path):
    rows = [row("cuda_runtime", "cudaGraphLaunch", "1.0", correlation=40)]
    rows += [
        kernel(f"{at}.0", name=f"node {at}", correlation=40, **{"graph id": 3, "graph node id": 2**63 + at})
        for at in (2, 3)
    ]
    trace = Trace.load(write(tmp_path, text(rows)))
    assert trace.graph_of.tolist() == [0, 3, 3]
    assert trace.columns["correlation"].tolist() == [40, 40, 40]
    trace.save(tmp_path / "again.json")
    assert Trace.load(tmp_path / "again.json").graph_of.tolist() == [0, 3, 3]


def test_one_device_of_several_can_be_looked_at(tmp_path):
    rows = [
        kernel("0.0", "10.0", device=0),
        kernel("5.0", "10.0", device=1),
        row("cpu_op", "aten::mm", "0.0", pid=9),
    ]
    trace = Trace.load(write(tmp_path, text(rows)))
    assert trace.devices == (0, 1) and trace.busy_us("kernel") == 15.0
    one = trace.only(device=1)
    assert one.busy_us("kernel") == 10.0 and one.busy_us("host") == 1.0 and one.devices == (1,)


def test_what_is_no_work_is_counted_and_left_out(tmp_path):
    rows = [
        kernel("1.0"),
        row("overhead", "Activity Buffer Request", "0.0", "900.0", pid=-1, tid=0),
        row("Trace", "PyTorch Profiler (0)", "0.0", "999.0", pid="Spans", tid="PyTorch Profiler"),
        row("python_function", "train.py(3): step", "0.0", "500.0"),
    ]
    trace = Trace.load(write(tmp_path, text(rows)))
    assert len(trace) == 1 and trace.skipped == {"overhead": 1, "Trace": 1, "python_function": 1}
    assert repr(trace) == "<Trace 't': 1 kernel; 0.0 to 1.0 us>"
