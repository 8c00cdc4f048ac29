"""record(): who records, how often the function runs, what is finished before and after; with stand-ins for a GPU."""

import subprocess
import sys
import types
from pathlib import Path

import pytest
from trace_files import kernel, row, text

from utils.trace import Trace, TraceWarning, record, recording, register_recorder


@pytest.fixture(autouse=True)
def no_recorder():
    before = register_recorder(None)
    yield
    register_recorder(before)


class FakeTorch(types.ModuleType):
    """Just enough of torch to see in which order things happen."""

    def __init__(self, log, *, available=True, rows=()):
        super().__init__("torch")
        self.log = log
        self.cuda = types.SimpleNamespace(is_available=lambda: available, synchronize=lambda: log.append("synchronize"))
        self.profiler = types.ModuleType("torch.profiler")
        self.profiler.ProfilerActivity = types.SimpleNamespace(CPU="cpu", CUDA="cuda")
        self.profiler.profile = lambda activities, acc_events: FakeProfile(log, activities, rows)

    def install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", self)
        monkeypatch.setitem(sys.modules, "torch.profiler", self.profiler)


class FakeProfile:
    def __init__(self, log, activities, rows):
        assert activities == ["cpu", "cuda"]
        self.log, self.rows = log, rows

    def __enter__(self):
        self.log.append("profile")
        return self

    def __exit__(self, *_):
        self.log.append("end")

    def export_chrome_trace(self, path):
        Path(path).write_text(text(self.rows))


def test_on_cuda_the_warm_up_is_not_profiled_and_everything_pending_is_finished(monkeypatch):
    log = []
    FakeTorch(log, rows=[kernel("7.0", "2.5"), row("cuda_runtime", "cudaLaunchKernel", "5.0")]).install(monkeypatch)

    def layer(*given, **named):
        log.append((given, named))

    trace = record(layer, 1, 2, warmup=2, bias=3)
    call = ((1, 2), {"bias": 3})
    assert log == [call, call, "synchronize", "profile", "synchronize", "end", "profile", call, "synchronize", "end"]
    assert trace.busy_us("kernel") == 2.5 and trace.columns["start_us"].tolist() == [0.0, 2.0]
    assert trace.name == "layer"


def test_a_profile_without_device_work_is_told(monkeypatch):
    FakeTorch([], rows=[row("cpu_op", "aten::mm", "1.0")]).install(monkeypatch)
    with pytest.warns(TraceWarning, match="no work on the device"):
        assert len(record(list)) == 1


def test_an_error_in_the_function_is_the_callers(monkeypatch):
    log = []
    FakeTorch(log).install(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 / 0, warmup=0)
    assert log[-1] == "end"


def test_a_simulated_device_records_even_on_a_cuda_machine(monkeypatch):
    log = []
    FakeTorch(log).install(monkeypatch)
    made = Trace.from_columns({"name": ["k"], "kind": ["kernel"], "start_us": [0], "duration_us": [4]})

    def recorder(call):
        log.append("begin")
        call()
        log.append("end")
        return made

    assert register_recorder(recorder) is None
    assert record(log.append, "run") is made
    assert log == ["run", "begin", "run", "end"]
    assert register_recorder(None) is recorder


@pytest.mark.parametrize("torch", [None, FakeTorch([], available=False)], ids=["no torch", "no CUDA"])
def test_without_any_device_the_error_says_what_to_do(monkeypatch, torch):
    monkeypatch.setitem(sys.modules, "torch", torch)        # None makes the import fail
    ran = []
    with pytest.raises(RuntimeError, match=r"no CUDA device .* start\(simulate=True\)"):
        record(ran.append, 1)
    assert ran == []


def test_a_negative_warm_up_is_refused():
    with pytest.raises(ValueError, match="warmup is -1"):
        record(print, warmup=-1)


def test_loading_and_measuring_need_neither_torch_nor_pandas(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(text([kernel("1.0", "2.0")]))
    code = (f"import sys; from utils.trace import Trace, record; trace = Trace.load({str(path)!r}); "
            "print(trace.busy_us('kernel'), len(trace.columns['name']), "
            "sorted({'torch', 'pandas', 'tqdm'} & set(sys.modules)))")
    root = Path(recording.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert (done.stdout.strip(), done.stderr) == ("2.0 1 []", "")
