"""Memory over time: what the profiler's file and the simulated allocator say, peaks, windows, saving, errors."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulated import pinned_ones
from test_trace_record import FakeTorch
from trace_files import kernel, row, small, text, write

from utils import simgpu
from utils.trace import Trace, TraceError, TraceWarning, record, recording, register_recorder

MIB = 2**20
CPU, CUDA, XPU = 0, 1, 12


def change(ts, total, moved, *, kind=CUDA, device=0, reserved=64 * MIB, **more):
    """An allocation or a free as the profiler writes it."""
    args = {"Total Reserved": reserved, "Total Allocated": total, "Bytes": moved, "Device Id": device,
            "Device Type": kind, "Addr": 140187763290176, "Ev Idx": 14, **more}
    return row("cpu_instant_event", "[memory]", ts, None, pid=9910, tid=9910, ph="i", **args)


def loaded(tmp_path, *rows, **around):
    return Trace.load(write(tmp_path, text(list(rows), **around)))


def levels(trace):
    memory = trace.memory
    return list(zip(memory.us.tolist(), memory.bytes.tolist(), strict=True))


# files
def test_totals_of_the_device_stand_at_the_call_on_the_clock_of_the_spans(tmp_path):
    trace = loaded(tmp_path, row("cpu_op", "aten::empty", "100.000", "5.000"), change("101.250", 12 * MIB, 4 * MIB),
                   kernel("110.000", "3.000"), change("120.500", 8 * MIB, -4 * MIB, reserved=32 * MIB))
    assert levels(trace) == [(0.0, 8 * MIB), (1.25, 12 * MIB), (20.5, 8 * MIB)]
    assert trace.memory.reserved_bytes.tolist() == [64 * MIB, 64 * MIB, 32 * MIB]
    assert trace.memory.held_bytes.tolist() == [0, 0, 0] and trace.memory.device == 0
    assert (len(trace), trace.peak_bytes(), trace.peak_bytes(start=20.5)) == (2, 12 * MIB, 8 * MIB)


def test_what_was_freed_before_the_first_span_is_kept_before_zero(tmp_path):
    trace = loaded(tmp_path, change("95.0", 2 * MIB, -MIB), kernel("100.0"), change("101.0", 0, -2 * MIB))
    assert levels(trace) == [(-5.0, 3 * MIB), (-5.0, 2 * MIB), (1.0, 0)]
    assert trace.peak_bytes() == 3 * MIB and trace.start_us == 0.0


def test_the_hosts_own_allocations_are_no_device_memory(tmp_path):
    trace = loaded(tmp_path, kernel("1.0"), change("2.0", 9 * MIB, 9 * MIB, kind=CPU, device=-1, reserved=0))
    assert not trace.has_memory and trace.memory_of(-1).bytes.tolist() == [0, 9 * MIB]
    with pytest.raises(ValueError, match=r"no record of device memory: .*memory=True"):
        trace.peak_bytes()


def test_each_device_has_its_own_record(tmp_path):
    trace = loaded(tmp_path, kernel("0.0"), kernel("1.0", device=1), change("2.0", 5, 5), change("3.0", 7, 7, device=1))
    with pytest.raises(ValueError, match=r"memory of devices 0, 1: choose one with only\(device=...\)"):
        _ = trace.memory
    assert levels(trace.only(device=1)) == [(0.0, 0), (3.0, 7)]
    assert trace.memory_of(0).peak_bytes() == 5 and trace.only(device=0).peak_bytes() == 5
    with pytest.raises(ValueError, match="no record of memory for device 2: this trace has 0, 1"):
        trace.memory_of(2)


@pytest.mark.parametrize("bad", [{"kind": XPU}, {"total": None}, {"total": 2**64 - 512}, {"total": "many"}])
def test_rows_without_a_total_or_of_other_devices_are_left_out_and_told(tmp_path, bad):
    total = bad.pop("total", 1)
    with pytest.warns(TraceWarning, match="1 rows about memory tell no total or another kind of device: left out"):
        trace = loaded(tmp_path, kernel("0.0"), change("1.0", 3, 3), change("2.0", total, 1, **bad))
    assert levels(trace) == [(0.0, 0), (1.0, 3)]


def test_memory_rows_keep_absolute_stamps_exact(tmp_path):
    rows = [kernel("1790857026000000.123"), change("1790857026000007.456", 3, 3)]
    assert loaded(tmp_path, *rows, head='"displayTimeUnit": "ns",').memory.us.tolist() == [0.0, 7.333]


def test_other_instants_and_a_file_without_spans(tmp_path):
    other = [row("cpu_instant_event", "[OutOfMemory]", "1.0", None, ph="i"),
             row("x", "Record Window End", '"nonsense"', None, ph="i")]
    assert not loaded(tmp_path, kernel("0.0"), *other).has_memory
    trace = loaded(tmp_path, change("1790857026000000.5", 3, 3), change("1790857026000001.5", 0, -3))
    assert len(trace) == 0 and levels(trace) == [(0.0, 0), (0.0, 3), (1.0, 0)]


@pytest.mark.parametrize("stamp", ['"soon"', "null"])
def test_a_change_without_a_time_is_an_error_that_names_the_byte(tmp_path, stamp):
    with pytest.raises(TraceError, match=r"t\.json: byte [\d,]+: the event '\[memory\]' has ts"):
        loaded(tmp_path, kernel("0.0"), change(stamp, 3, 3))


PROFILED = """
import sys, torch
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
    a = torch.zeros(1024, 1024)
    b = a @ a
    del a
    c = b + 1
    del b, c
profiler.export_chrome_trace(sys.argv[1])
"""


def test_a_file_that_the_profiler_wrote_on_this_machine(tmp_path):
    path = tmp_path / "cpu.json"
    subprocess.run([sys.executable, "-c", PROFILED, str(path)], check=True, capture_output=True)
    trace, tensor = Trace.load(path), 4 * MIB
    memory = trace.memory_of(-1)
    assert not trace.has_memory and memory.peak_bytes() // tensor == 2
    whole = [total // tensor for total in memory.bytes.tolist() if total % tensor == 0]
    assert whole[:4] == [0, 1, 2, 1] and whole[-1] == 0
    assert memory.us[1] >= 0 and memory.us[-1] <= trace.stop_us + 1e4


# columns, windows
def test_columns_sort_by_time_and_peaks_follow_the_window():
    trace = small(memory={"us": [30, 0, 10], "bytes": [5, 1, 9], "held_bytes": [0, 0, 2]})
    assert levels(trace) == [(0.0, 1), (10.0, 9), (30.0, 5)]
    assert (trace.peak_bytes(), trace.peak_bytes(series="in use"), trace.peak_bytes(series="reserved")) == (9, 11, 0)
    assert trace.peak_bytes(start=0, stop=9.9) == 1 and trace.peak_bytes(stop=10) == 9
    assert trace.peak_bytes(start=12, stop=14) == 9
    assert trace.peak_bytes(start=30) == 5 and trace.peak_bytes(start=99) == 5
    assert trace.memory.table.columns.tolist() == ["us", "bytes", "held_bytes", "reserved_bytes"]
    assert trace != small() and trace == small(memory={"us": [0, 10, 30], "bytes": [1, 9, 5], "held_bytes": [0, 2, 0]})


@pytest.mark.parametrize(
    "window, words",
    [({"start": 3, "stop": 2}, "from 3 to 2 us ends before it starts"),
     ({"stop": -1}, "ends at -1 us, before the record of memory begins at 0 us"),
     ({"series": "free"}, "series is 'free': give one of 'allocated', 'in use', 'reserved'")],
)
def test_windows_and_series_that_mean_nothing_are_refused(window, words):
    with pytest.raises(ValueError, match=words):
        small(memory={"us": [0], "bytes": [1]}).peak_bytes(**window)


@pytest.mark.parametrize(
    "columns, words",
    [({"us": [0]}, "no column 'bytes'"),
     ({"us": [0], "bytes": [1], "free": [2]}, "unknown column 'free'"),
     ({"us": [0, 1], "bytes": [1]}, "unequal length"),
     ({"us": [float("nan")], "bytes": [1]}, "us is nan in row 0"),
     ({"us": [0], "bytes": [1.5]}, "bytes is 1.5"),
     ({"us": [0, 1], "bytes": [1, -4]}, "bytes in row 1 of the record of memory is -4: give 0 or more")],
)
def test_a_record_that_cannot_be_is_refused(columns, words):
    with pytest.raises(TraceError, match=words):
        small(memory=columns)


# saving
rows_of_memory = st.lists(st.tuples(st.integers(-1000, 10**9), st.integers(0, 2**45), st.integers(0, 2**40),
                                    st.integers(0, 2**45), st.integers(-1, 2)), max_size=12)


@given(rows_of_memory)
def test_what_was_saved_loads_equal(tmp_path_factory, rows):
    names = ("us", "bytes", "held_bytes", "reserved_bytes", "device")
    columns = {name: [line[at] for line in rows] for at, name in enumerate(names)}
    columns["us"] = [nano / 1000 for nano in columns["us"]]
    trace = small(memory=columns)
    path = tmp_path_factory.mktemp("saved") / "t.json"
    trace.save(path)
    assert Trace.load(path) == trace


def test_a_loaded_record_survives_saving_and_draws_a_curve_in_viewers(tmp_path):
    trace = loaded(tmp_path, kernel("5.0"), change("6.0", 9, 4), change("7.0", 2, -7))
    trace.save(tmp_path / "again.json.gz")
    assert Trace.load(tmp_path / "again.json.gz") == trace
    events = json.loads(gzip.decompress((tmp_path / "again.json.gz").read_bytes()))["traceEvents"]
    curve = [(event["ts"], event["pid"], event["args"]) for event in events if event["ph"] == "C"]
    assert curve == [(0.0, 0, {"allocated": 5}), (1.0, 0, {"allocated": 9}), (2.0, 0, {"allocated": 2})]
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] in "iC"} <= named


# the simulated device
sizes = st.sampled_from([512, 4096, MIB, 3 * MIB, 8 * MIB, 24 * MIB])
steps = st.lists(st.one_of(
    st.tuples(st.just("new"), sizes, st.integers(0, 2)), st.tuples(st.just("drop"), st.integers(0, 9)),
    st.tuples(st.just("use"), st.integers(0, 9), st.integers(0, 2)), st.tuples(st.just("share"), st.integers(0, 9)),
    st.tuples(st.just("sync")), st.tuples(st.just("host"), st.integers(1, 50)), st.tuples(st.just("empty cache"))),
    max_size=25)


def play(program, alive):
    """Run allocations, frees and work on three streams; yield after each step. ``alive``: the tensors."""
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    for what, *rest in program:
        if what == "new":
            with torch.cuda.stream(streams[rest[1]]):
                alive.append(torch.empty(rest[0], dtype=torch.uint8, device="cuda"))
        elif what == "use" and alive:
            with torch.cuda.stream(streams[rest[1]]):
                alive[rest[0] % len(alive)].zero_()
                alive[rest[0] % len(alive)].record_stream(streams[rest[1]])
        elif what == "share" and alive:
            alive[rest[0] % len(alive)].record_stream(streams[1])
        elif what == "drop" and alive:
            del alive[rest[0] % len(alive)]
        elif what == "sync":
            torch.cuda.synchronize()
        elif what == "host":
            simgpu.host_work(rest[0])
        elif what == "empty cache":
            torch.cuda.empty_cache()
        yield


@given(steps, steps)
def test_the_record_is_what_the_allocator_counts(first, second):
    with simgpu.session(simgpu.H200, numerics="shapes") as gpu:
        seen, alive = [], []
        for _ in play(first, alive):
            seen.append((simgpu.clock(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        active = torch.cuda.memory_stats()["active_bytes.all.peak"]
        trace = gpu.trace()
        assert (trace.peak_bytes(), trace.peak_bytes(series="reserved")) == peaks
        assert trace.peak_bytes(series="in use") == active
        memory = trace.memory
        assert (np.diff(memory.us) >= 0).all() and memory.us[-1] <= simgpu.clock()
        last = {time: level for time, *level in seen}
        for time, level in last.items():
            at = int(np.searchsorted(memory.us, time + 1e-9, side="right")) - 1
            assert [memory.bytes[at], memory.reserved_bytes[at]] == level
        # the record of a part starts from what there was
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = simgpu.clock()
        for _ in play(second, alive):
            pass
        assert gpu.trace().peak_bytes(start=start) == torch.cuda.max_memory_allocated()


def test_memory_stands_at_the_call_of_the_host_not_at_the_work_of_the_device(gpu):
    torch.cuda._sleep(10_000_000)
    before = simgpu.clock()
    x = torch.ones(MIB, device="cuda")
    trace = gpu.trace()
    written = trace.columns["start_us"][trace.columns["name"] == "ones"]
    assert before <= trace.memory.us[-1] <= simgpu.clock() and written >= 10_000 > simgpu.clock()
    assert trace.peak_bytes(stop=simgpu.clock()) == 4 * x.numel()


def test_a_freed_block_that_another_stream_needs_is_held_until_the_allocator_looks(gpu):
    side, host = torch.cuda.Stream(), pinned_ones(16 * MIB)
    x = host.cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        y = x * 2
    x.record_stream(side)
    del x
    held = gpu.trace().memory
    assert (held.bytes[-1], held.held_bytes[-1], held.in_use_bytes[-1]) == (64 * MIB, 64 * MIB, 128 * MIB)
    torch.cuda.synchronize()
    z = torch.empty(8, device="cuda")
    after = gpu.trace().memory
    assert (after.bytes[-1], after.held_bytes[-1]) == (64 * MIB + 512, 0) and y is not z


def test_recording_a_part_starts_at_its_own_zero_with_what_was_there(gpu):
    x = torch.ones(4 * MIB, dtype=torch.uint8, device="cuda")
    trace = record(lambda: x + x, warmup=0)
    assert levels(trace) == [(0.0, 4 * MIB), (0.0, 8 * MIB), (trace.memory.us[-1], 4 * MIB)]
    assert trace.peak_bytes() == 8 * MIB and trace.memory.us[-1] > 0


def test_after_the_session_tensors_may_go_without_a_trace(gpu):
    with simgpu.session(simgpu.H200) as inner:
        x = torch.ones(MIB, device="cuda")
    rows = len(inner.trace().memory)
    del x
    assert len(inner.trace().memory) == rows


def test_a_session_without_history_keeps_no_record():
    with simgpu.session(simgpu.H200, keep="none") as gpu:
        for _ in range(3):
            torch.ones(MIB, device="cuda")
        assert len(gpu.machine.memory.history) == 1 and torch.cuda.max_memory_allocated() == 4 * MIB


# record() on CUDA
@pytest.fixture
def no_recorder():
    before = register_recorder(None)
    yield
    register_recorder(before)


@pytest.mark.parametrize("memory", [False, True])
def test_the_profiler_is_asked_for_memory_only_when_it_is_wanted(monkeypatch, no_recorder, memory):
    fake, asked = FakeTorch([], rows=[kernel("7.0", "2.5"), change("8.0", 3, 3)]), []
    plain = fake.profiler.profile

    def profile(activities, acc_events, **more):
        asked.append(more)
        return plain(activities, acc_events)

    fake.profiler.profile = profile
    fake.install(monkeypatch)
    trace = record(list, memory=memory)
    assert asked == [{}, {"profile_memory": True} if memory else {}] and trace.peak_bytes() == 3


def test_a_profile_without_any_change_of_memory_is_told(monkeypatch, no_recorder):
    fake = FakeTorch([], rows=[kernel("7.0", "2.5")])
    plain = fake.profiler.profile
    fake.profiler.profile = lambda activities, acc_events, profile_memory=False: plain(activities, acc_events)
    fake.install(monkeypatch)
    with pytest.warns(TraceWarning, match="no allocation and no free on the device"):
        record(list, memory=True)


def test_memory_needs_no_pandas(tmp_path):
    path = write(tmp_path, text([kernel("1.0", "2.0"), change("1.5", 3, 3)]))
    code = (f"import sys; from utils.trace import Trace; trace = Trace.load({str(path)!r}); "
            "print(trace.peak_bytes(), trace.memory, sorted({'torch', 'pandas'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          cwd=Path(recording.__file__).parents[2])
    assert (done.stdout.strip(), done.stderr) == ("3 <Memory of device 0: 2 rows, peak 3 bytes allocated> []", "")
