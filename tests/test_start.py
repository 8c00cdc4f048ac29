"""The first cell on every kind of machine, played by fakes."""

import re
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest

import utils
from utils.start import find_gpu

ROOT = Path(__file__).resolve().parents[1]
START = sys.modules["utils.start"]
GPU = "NVIDIA GeForce RTX 4090"


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    find_gpu.cache_clear()
    for name in ("CUDA_VISIBLE_DEVICES", START.FIXED_OUTPUTS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(START, "_simulation", None)
    monkeypatch.setattr(START, "load_simulator", lambda: None)
    yield
    find_gpu.cache_clear()


@pytest.fixture
def cuda(monkeypatch):
    """Let torch report a CUDA device; the product's outcome is set by each test."""
    import torch

    properties = types.SimpleNamespace(name="NVIDIA H200", total_memory=140 * 1024**3, major=9, minor=0)
    for name, value in {"is_available": lambda: True, "get_device_properties": lambda _: properties,
                        "get_device_name": lambda _: properties.name,
                        "get_device_capability": lambda _: (9, 0)}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(START, "try_product", lambda: "")
    return monkeypatch


@pytest.fixture
def unseen(monkeypatch):
    """torch reports no device, the system has an NVIDIA GPU."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(START, "seen_gpu", lambda: GPU)
    return monkeypatch


def simulator():
    calls = []
    return types.SimpleNamespace(calls=calls, RTX_5060_LAPTOP="profile", install=lambda p: calls.append(("install", p)),
                                 uninstall=lambda: calls.append(("uninstall",)))


def test_utils_start_is_the_function():
    assert utils.start is START.start


def test_no_gpu_prints_one_fixed_line(monkeypatch, capsys):
    monkeypatch.setattr(START, "seen_gpu", lambda: "")
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert utils.start() == torch.device("cpu")
    assert utils.start() == torch.device("cpu")
    assert capsys.readouterr() == ("No CUDA GPU here: numbers are computed on this CPU.\n" * 2, "")


def test_gpu_that_computes(cuda, capsys):
    import torch

    assert utils.start() == torch.device("cuda")
    assert re.fullmatch(r"NVIDIA H200: 140\.0 GiB, compute capability 9\.0, torch \S+, CUDA 13\.0\n",
                        capsys.readouterr().out)


@pytest.mark.parametrize("fault, expected", [
    ("CUDA error: no kernel image is available for execution on the device\nmore",
     "no code for this GPU (NVIDIA H200, compute capability 9.0)"),
    ("CUDA out of memory. Tried to allocate 2.00 MiB", "memory is full"),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", "memory is full"),
    ("CUDA error: all CUDA-capable devices are busy or unavailable", "another program"),
    ("CUDA driver version is insufficient for CUDA runtime version", "driver is too old"),
    ("The NVIDIA driver on your system is too old (found version 11040)", "driver is too old"),
    ("CUDA unknown error - this may be due to an incorrectly set up environment", "bad state"),
    ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling cublasCreate(handle)", "libraries do not work together"),
    ("a product of ones gave 3, not 262144", "a product of ones gave 3"),
    ("something new\nsecond line", "(something new)"),
])
def test_gpu_that_does_not_compute(cuda, capsys, fault, expected):
    import torch

    cuda.setattr(START, "try_product", lambda: fault)
    assert utils.start() == torch.device("cpu")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("NVIDIA GPU not used: ") and expected in first
    assert re.search(r"restart|Get started", first), "it says what to do"
    assert second.startswith("No CUDA GPU here")


def test_product_reports_errors_and_wrong_numbers(monkeypatch):
    import torch

    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *shape, device: ones(*shape))
    assert START.try_product() == ""
    monkeypatch.setattr(torch, "ones", lambda *shape, device: ones(*shape) * 2)
    assert START.try_product() == "a product of ones gave 1048576.0, not 262144"

    def fail(*shape, device):
        raise RuntimeError("CUDA error: no kernel image")
    monkeypatch.setattr(torch, "ones", fail)
    assert START.try_product() == "CUDA error: no kernel image"


def test_cpu_build_beside_an_nvidia_gpu(unseen, capsys):
    import torch

    unseen.setattr(torch.version, "cuda", None)
    utils.start()
    first = capsys.readouterr().out.splitlines()[0]
    assert GPU in first and "CPU build" in first and "Get started" in first and sys.executable in first


def test_hidden_by_a_variable(unseen, capsys):
    unseen.setenv("CUDA_VISIBLE_DEVICES", "")
    utils.start()
    assert "CUDA_VISIBLE_DEVICES='' hides it" in capsys.readouterr().out


def test_old_driver_is_said_in_advice_not_on_stderr(unseen, capfd):
    import torch

    def old():
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old", stacklevel=1)
        return False
    unseen.setattr(torch.cuda, "is_available", old)
    utils.start()
    out, err = capfd.readouterr()
    assert "too old for CUDA 13.0" in out and err == ""


def test_container_without_the_device(unseen, capsys):
    unseen.setattr(START.sys, "platform", "linux")
    unseen.setattr(START.Path, "exists", lambda self: False)
    utils.start()
    assert "--gpus all" in capsys.readouterr().out


def test_cuda_that_does_not_start(unseen, capsys):
    unseen.setattr(START.Path, "exists", lambda self: True)
    utils.start()
    assert "CUDA does not start: restart the computer" in capsys.readouterr().out


def test_advice_is_left_out_where_outputs_are_compared(unseen, capsys):
    unseen.setenv(START.FIXED_OUTPUTS, "1")
    utils.start()
    assert capsys.readouterr().out == "No CUDA GPU here: numbers are computed on this CPU.\n"


@pytest.mark.parametrize("listing, name", [
    ("GPU 0: NVIDIA H200 (UUID: GPU-1234)\nGPU 1: NVIDIA T4 (UUID: GPU-5)\n", "NVIDIA H200"),
    ("No devices were found\n", ""),
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", ""),
])
def test_nvidia_smi_without_a_gpu_is_no_gpu(monkeypatch, listing, name):
    monkeypatch.setattr(START.shutil, "which", lambda _: "nvidia-smi")
    monkeypatch.setattr(START.subprocess, "run", lambda *a, **k: types.SimpleNamespace(stdout=listing))
    monkeypatch.setattr(START, "driver_gpu", lambda _: "")
    assert START.seen_gpu() == name


def test_model_from_the_driver_folder(tmp_path):
    assert START.driver_gpu(tmp_path) == ""
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t\t NVIDIA A100\nIRQ: 3\n")
    assert START.driver_gpu(tmp_path) == "NVIDIA A100"


# the simulated device

def test_simulated_device_without_a_gpu(monkeypatch, capsys):
    import torch

    gpu = simulator()
    monkeypatch.setattr(START, "load_simulator", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(START, "seen_gpu", lambda: "")
    assert utils.start() == torch.device("cuda") and utils.start() == torch.device("cuda")
    line = "Simulated RTX 5060 Laptop: times are simulated, numbers are computed on this CPU.\n"
    assert capsys.readouterr().out == line * 2
    assert gpu.calls == [("install", "profile")], "a second start() keeps the running device"


def test_simulate_on_a_cuda_machine_and_back(cuda, capsys):
    gpu = simulator()
    cuda.setattr(START, "load_simulator", lambda: gpu)
    utils.start(simulate=True)
    assert find_gpu.cache_info().currsize == 0, "the GPU is not touched"
    utils.start()
    assert gpu.calls == [("install", "profile"), ("uninstall",)]
    simulated, real = capsys.readouterr().out.splitlines()
    assert simulated.startswith("Simulated RTX") and real.startswith("NVIDIA H200")


def test_a_session_of_somebody_else_is_left_alone(cuda, capsys):
    import torch

    cuda.setitem(sys.modules, "utils.simgpu", types.SimpleNamespace(active=lambda: "a device"))
    assert utils.start() == torch.device("cuda")
    assert capsys.readouterr().out.startswith("A simulated device is in use already")
    assert find_gpu.cache_info().currsize == 0, "or it would be taken for a real one"


def test_only_a_missing_simulator_is_forgiven(monkeypatch):
    monkeypatch.undo()

    def missing(name):
        def load(_):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return load
    monkeypatch.setattr(START.importlib, "import_module", missing("utils.simgpu"))
    assert START.load_simulator() is None
    monkeypatch.setattr(START.importlib, "import_module", missing("numpy"))
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        START.load_simulator()


def test_the_real_simulator():
    """start() and utils.simgpu fit together; in a process of its own, since torch.cuda is patched meanwhile."""
    script = ("import torch, utils; from utils import simgpu; device = utils.start(simulate=True); "
              "print(device, torch.cuda.is_available(), simgpu.active() is not None); "
              "x = torch.ones(4, device=device) + 1; print(x.sum().item()); print(utils.start(simulate=True))")
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    line = "Simulated RTX 5060 Laptop: times are simulated, numbers are computed on this CPU."
    assert done.stdout.splitlines() == [line, "cuda True True", "8.0", line, "cuda"], done.stderr


# wrong kernels

def test_missing_torch_names_the_kernel(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name == "torch":
                raise ModuleNotFoundError("No module named 'torch'", name="torch")
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    with pytest.raises(ImportError, match=re.escape(sys.executable) + r", which has no torch\. Choose the kernel"):
        START.require_torch()


@pytest.mark.parametrize("version, fits", [("2.8.1", False), ("1.13.0", False), ("2.9.0", True), ("2.14.1+cpu", True),
                                           ("3.0", True)])
def test_old_torch(monkeypatch, version, fits):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__=version))
    if fits:
        assert START.require_torch() is None
    else:
        with pytest.raises(ImportError, match=rf"torch {re.escape(version)}; the course needs 2\.9"):
            START.require_torch()
