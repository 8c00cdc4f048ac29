"""Trace files as they come: exact stamps, rows that are no work, odd durations and overlaps."""

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import BASE_NS, copy, kernel, row, text, write

from utils.trace import Trace, TraceWarning
from utils.trace import jsontext as reading
from utils.trace.stamps import digits_ns, stamps_ns

BASE = f'"baseTimeNanoseconds": {BASE_NS},'


def load(folder, rows, **around):
    return Trace.load(write(folder, text(rows, **around)))


# --- T1: exact stamps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["", BASE, '"displayTimeUnit": "ns",', BASE + '"displayTimeUnit": "ns",'])
@pytest.mark.parametrize("origin_us", [0, 5_131_406_945_053, 1_790_857_026_000_000])
def test_times_are_exact_and_from_zero_whatever_they_count_from(tmp_path, head, origin_us):
    rows = [
        kernel(f"{origin_us}.123", "0.001"),
        kernel(f"{origin_us}.124", "2317.916"),
        kernel(f"{origin_us + 2318}.041", "9.990"),
    ]
    trace = load(tmp_path, rows, head=head)
    assert trace.columns["start_us"].tolist() == [0.0, 0.001, 2317.918]
    assert trace.columns["duration_us"].tolist() == [0.001, 2317.916, 9.99]
    assert trace.busy_us("kernel") == 2327.907  # one nanosecond lies between the second and the third


@pytest.mark.parametrize(
    "stamp, later",
    [
        ("1790857026000000.123", "1790857026000002.623"),
        ("1790857026000000.5", "1790857026000003"),
        ("1.790857026000000123e15", "1.790857026000002623E+15"),
        ('"1790857026000000.123"', '"1790857026000002.623"'),
        ("-1790857026000000.123", "-1790857025999997.623"),
        ("179085702600000012300e-5", "179085702600000262300e-5"),
        ("4.25e2", "427.5"),
        ('"10"', "12.5"),
        ("-2.500", "0"),
    ],
)
def test_every_way_to_write_a_number_is_read_digit_for_digit(tmp_path, stamp, later):
    trace = load(tmp_path, [kernel(stamp, '"1.500"'), kernel(later, "15e-1")])
    assert trace.columns["start_us"].tolist() == [0.0, 2.5]
    assert trace.columns["duration_us"].tolist() == [1.5, 1.5]


@given(st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=9))
def test_digits_are_read_exactly(stamps):
    written = [f"{'-' if nano < 0 else ''}{abs(nano) // 1000}.{abs(nano) % 1000:03d}" for nano in stamps]
    assert digits_ns(written).tolist() == stamps
    short = [nano // 10 * 10 for nano in stamps if nano >= 0]
    assert digits_ns([f"{nano // 1000}.{nano % 1000:03d}".rstrip("0") + "0" for nano in short]).tolist() == short
    small = [nano for nano in stamps if abs(nano) < 2**43 * 1000]
    assert stamps_ns([nano / 1000 for nano in small]).tolist() == small


def test_a_stamp_within_the_arguments_or_a_name_changes_nothing(tmp_path):
    rows = [
        kernel(
            "1790857026000000.123",
            name='the "ts": 5 of "dur": 6',
            **{'x"ts': 1.5, "tags": [{"ts": 1.25}, {"ts": 2, "dur": 1e300}]},
        ),
        kernel("1790857026000001.123"),
    ]
    trace = load(tmp_path, rows)
    assert trace.columns["name"][0] == 'the "ts": 5 of "dur": 6'
    assert trace.columns["start_us"].tolist() == [0.0, 1.0]


def test_a_file_may_change_its_way_of_counting_halfway(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "SCAN_BYTES", 64)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 300)
    rows = [kernel(f"{at}.125") for at in range(20)] + [kernel(f"17908570260{at:05d}.001") for at in range(20)]
    with pytest.warns(TraceWarning, match="cover more than 104 days, with the widest gap before 'gemm'"):
        trace = load(tmp_path, rows)
    assert trace.columns["start_us"][:20].tolist() == [float(at) for at in range(20)]
    assert trace.busy_us("kernel", stop=1000) == 20.0
    late = 1_790_857_026_000_000
    assert trace.busy_us("kernel", start=late - 1000, stop=late + 1000) == pytest.approx(20.0, abs=1)


# --- T3: rows that are no work ----------------------------------------------------------------------------------------


def test_metadata_markers_and_waits_are_no_kernel_time(tmp_path):
    rows = [
        '{"ph": "M", "name": "process_name", "pid": "652", "tid": "", "args": {"name": "python"}}',
        '{"ph": "i", "name": "Record Window End", "s": "g", "pid": "", "tid": "", "ts": 99999.0}',
        '{"ph": "s", "id": 5, "pid": 1, "tid": 1, "ts": 1.0, "cat": "ac2g", "name": "ac2g"}',
        kernel("10.0", "5.0"),
        row("cuda_sync", "Stream Sync", "0.0", "1000.0", tid=1, stream=7),
        row("kernel", "Stream Wait Event", "0.0", "500.0", stream=7),
        row("cpu_op", "aten::mm", "12.0", pid="652", tid="main"),
    ]
    trace = load(tmp_path, rows)
    assert trace.columns["kind"].tolist() == ["sync", "sync", "kernel", "host"]
    assert trace.busy_us("kernel") == 5.0 and trace.idle_share("kernel") == 0.0


def test_ids_in_quotes_and_arguments_left_out_are_understood(tmp_path):
    rows = [
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": "1", "tid": "20", "ts": 1.0, "dur": 2.0}',
        '{"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 7, "ts": 1, '
        '"dur": 1, '
        '"args": {"stream": "9", "bytes": 6442450944, "correlation": null, "device": 2}}',
        '{"ph": "X", "cat": "kernel", "name": "big", "pid": 0, "tid": "x", "ts": 1, "dur": 1, "args": {"correlation": '
        "99999999999999999999999}}",
    ]
    columns = load(tmp_path, rows).columns
    assert columns["stream"].tolist() == [20, 9, -1]
    assert columns["bytes"].tolist() == [0, 6 * 2**30, 0]
    assert columns["correlation"].tolist() == [-1, -1, -1]


def test_the_last_of_two_equal_keys_counts(tmp_path):
    event = '{"ph": "X", "cat": "kernel", "name": "a", "ts": 1, "dur": 5, '
    event += '"ts": 1790857026000000.123, "dur": 2, "name": "b"}'
    trace = load(tmp_path, [event, kernel("1790857026000001.123")])
    assert trace.columns["name"].tolist() == ["b", "gemm"] and trace.columns["start_us"].tolist() == [0.0, 1.0]


def test_begin_and_end_rows_are_paired_within_their_thread(tmp_path):
    rows = [
        row("cpu_op", "outer", "1.0", None, ph="B", tid=1),
        row("cpu_op", "inner", "2.0", None, ph="B", tid=1),
        row("cpu_op", "other", "2.5", None, ph="B", tid=2),
        '{"ph": "E", "pid": 0, "tid": 1, "ts": 4.0}',
        '{"ph": "E", "pid": 0, "tid": 2, "ts": 3.0}',
        '{"ph": "E", "pid": 0, "tid": 1, "ts": 6.0}',
    ]
    trace = load(tmp_path, rows)
    assert trace.columns["name"].tolist() == ["outer", "inner", "other"]
    assert trace.columns["duration_us"].tolist() == [5.0, 2.0, 0.5]
    with pytest.warns(TraceWarning) as told:
        trace = load(tmp_path, [*rows[:2], '{"ph": "E", "pid": 0, "tid": 9, "ts": 4.0}'])
    assert trace.columns["duration_us"].tolist() == [0.0, 0.0]
    assert [re.sub(".*t.json: ", "", str(entry.message)) for entry in told] == [
        "2 spans begin and never end: kept with duration 0; the first is 'outer'",
        "1 end events have no beginning: left out",
    ]


# --- T4: durations and overlaps ---------------------------------------------------------------------------------------


def test_zero_stays_and_negative_is_clipped_with_a_warning(tmp_path):
    rows = [
        kernel("0.0", "0"),
        kernel("1.0", "-5.5", name="back"),
        kernel("2.0", "3.0"),
        kernel("5.0", None, name="open"),
    ]
    with pytest.warns(TraceWarning) as told:
        trace = load(tmp_path, rows)
    assert trace.columns["duration_us"].tolist() == [0.0, 0.0, 3.0, 0.0]
    assert trace.busy_us("kernel") == 3.0 and trace.idle_share("kernel") == pytest.approx(0.4)
    messages = "\n".join(str(entry.message) for entry in told)
    assert (
        "1 spans have a negative duration (the first -5.5 us): kept with duration 0; the first is 'back'"
        in messages
    )
    assert "1 spans have no duration: kept with duration 0; the first is 'open'" in messages


def test_overlaps_on_one_stream_are_kept_and_told(tmp_path):
    rows = [
        kernel("0.0", "100.0", name="long"),
        kernel("10.0", "5.0", name="inside"),
        kernel("90.0", "20.0", name="late"),
        kernel("0.0", "50.0", stream=8),
        kernel("0.0", "50.0", device=1),
        row("cpu_op", "aten::mm", "0.0", "70.0"),
    ]
    with pytest.warns(
        TraceWarning, match=r"2 spans overlap earlier work .* stream 7 at 10.000 us; the first is 'inside'"
    ):
        trace = load(tmp_path, rows)
    assert trace.busy_us("kernel") == 110.0 == trace.stop_us and len(trace) == 6


def test_work_back_to_back_is_no_overlap(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace = load(
            tmp_path,
            [kernel("1790857026000000.001", "0.002"), kernel("1790857026000000.003"), copy("1790857026000000.001")],
        )
    assert trace.busy_us("kernel") == 1.002


def test_a_lone_kernel_of_no_length_is_not_idle(tmp_path):
    assert load(tmp_path, [kernel("5.0", "0")]).idle_share("kernel") == 0.0


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-20, 60), st.integers(7, 8)), min_size=1, max_size=20))
def test_busy_time_never_exceeds_wall_time(tmp_path_factory, spans):
    rows = [kernel(f"{at}.000", f"{dur}.000", stream=stream) for at, dur, stream in spans]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TraceWarning)
        trace = load(tmp_path_factory.mktemp("t"), rows)
    seconds = {at + tick for at, dur, _ in spans for tick in range(max(dur, 0))}
    assert trace.busy_us("kernel") == len(seconds) <= trace.stop_us - trace.start_us
    assert 0.0 <= trace.idle_share("kernel") <= 1.0
