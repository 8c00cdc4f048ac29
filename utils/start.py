"""First cell of every notebook: say what this machine is and return the device that the lesson runs on.

Only the standard library is imported with this module; torch comes in when ``start`` is called.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

GIB = 1024**3
OLDEST_TORCH = (2, 9)
PROBE_ROWS = 64
FIXED_OUTPUTS = "COURSE_FIXED_OUTPUTS"      # set by the tests, which compare this cell's output on any machine
SMI_S = 20                      # nvidia-smi wakes a sleeping GPU first
GET_TORCH = 'PyTorch\'s page "Get started" names the install command for your driver'
AGAIN = "then restart the kernel"

# What CUDA says when a first product fails, and what to do; first match wins.
GEMM_ADVICE = (
    (r"no kernel image|not compatible|invalid device function|sm_\d+ is not",
     "this torch has no code for this GPU ({name}, compute capability {capability}): install a build that has it. "
     + GET_TORCH + f", {AGAIN}."),
    (r"out of memory|ALLOC_FAILED",
     "its memory is full: nvidia-smi lists the programs that hold it; shut down other notebooks' kernels, "
     f"{AGAIN}."),
    (r"busy or unavailable|exclusive|in use",
     "another program has it to itself (exclusive mode): end that program (nvidia-smi lists it), "
     f"{AGAIN}."),
    (r"driver.*(too old|insufficient)|insufficient.*driver",
     f"its driver is too old for this torch: update the driver, or install an older CUDA build. {GET_TORCH}, {AGAIN}."),
    (r"unknown error|unspecified launch failure|driver shutting down|uncorrectable|not ready",
     f"the driver is in a bad state (often after the computer slept): restart the computer. If it stays, {GET_TORCH}."),
    (r"NOT_INITIALIZED|NOT_SUPPORTED|EXECUTION_FAILED|cublas",
     "its libraries do not work together: reinstall torch in a fresh environment. " + GET_TORCH + f", {AGAIN}."),
)


@dataclass(frozen=True)
class Found:
    """What this machine has: a CUDA device that computes, or advice about an NVIDIA GPU that cannot be used."""

    device: torch.device | None
    banner: str = ""
    advice: str = ""


def start(simulate: bool = False) -> torch.device:
    """Print what this notebook runs on and return the device to use.

    A CUDA GPU that computes comes first; without one, or with ``simulate=True``, the simulated device. Can be called
    again at any time: a simulated device that is running goes on. Raises ImportError when torch is missing or older
    than 2.9.
    """
    require_torch()
    if somebody_simulates():
        import torch

        print("A simulated device is in use already: times are simulated, numbers are computed on this CPU.")
        return torch.device("cuda")
    if not simulate and find_gpu.cache_info().currsize == 0:
        leave_simulation()          # or the simulated device would be taken for a real one
    found = Found(None) if simulate else find_gpu()
    if found.device is not None:
        leave_simulation()
        print(found.banner)
        return found.device
    if found.advice and not os.environ.get(FIXED_OUTPUTS):
        print(f"NVIDIA GPU not used: {found.advice}")
    return stand_in()


# without a GPU

_simulation: Any = None         # the module utils.simgpu while start() has its device installed


def stand_in() -> torch.device:
    """Install the simulated device, print its banner and return it; the CPU where the simulator is not there."""
    global _simulation
    import torch

    if _simulation is None:
        _simulation = load_simulator()
        if _simulation is None:
            print("No CUDA GPU here: numbers are computed on this CPU.")
            return torch.device("cpu")
        _simulation.install(_simulation.RTX_5060_LAPTOP)
    print("Simulated RTX 5060 Laptop: times are simulated, numbers are computed on this CPU.")
    return torch.device("cuda")


def somebody_simulates() -> bool:
    """A session of utils.simgpu is active that start() did not begin."""
    simgpu = sys.modules.get("utils.simgpu")
    return _simulation is None and simgpu is not None and simgpu.active() is not None


def leave_simulation() -> None:
    global _simulation
    if _simulation is not None:
        _simulation.uninstall()
        _simulation = None


def load_simulator() -> Any:
    """The module utils.simgpu, or None when this copy of the course has none."""
    try:
        simgpu = importlib.import_module("utils.simgpu")
    except ModuleNotFoundError as error:
        if error.name != "utils.simgpu":
            raise
        return None
    return simgpu if hasattr(simgpu, "install") else None


# with torch

def require_torch() -> None:
    """Raise ImportError in words when this kernel's Python has no torch, or an old one."""
    kernel = f"This notebook runs in {sys.executable}"
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"{kernel}, which has no torch. Choose the kernel of the course's .venv, or install "
                          "requirements.txt there; `python3 -m utils lab` does both.") from None
    if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < OLDEST_TORCH:
        raise ImportError(f"{kernel}, which has torch {torch.__version__}; the course needs "
                          f"{OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} or newer: install requirements.txt there.")


@functools.cache
def find_gpu() -> Found:
    """The CUDA device of this machine, tried with a small product, since ``is_available`` alone can be wrong."""
    import torch

    with warnings.catch_warnings(record=True) as caught:    # torch warns of old drivers and GPUs it has no code for
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
        fault = try_product() if available else ""
        said = "; ".join(str(warning.message) for warning in caught)
    if available and not fault:
        return Found(torch.device("cuda"), describe_gpu())
    if available:
        return Found(None, advice=advise_on_product(fault))
    gpu = seen_gpu()
    return Found(None, advice=advise_on_absence(gpu, said) if gpu else "")


def try_product() -> str:
    """Multiply two small matrices on the GPU; "" when the result is right, else what went wrong."""
    import torch

    try:
        ones = torch.ones(PROBE_ROWS, PROBE_ROWS, device="cuda")
        total = (ones @ ones).sum().item()
    except Exception as error:      # RuntimeError, AcceleratorError, OutOfMemoryError, depending on torch's version
        return str(error).strip() or type(error).__name__
    return "" if total == PROBE_ROWS**3 else f"a product of ones gave {total}, not {PROBE_ROWS**3}"


def describe_gpu() -> str:
    """Name, memory, compute capability, torch and CUDA version, in one line."""
    import torch

    properties = torch.cuda.get_device_properties(0)
    runtime = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    return (f"{properties.name}: {properties.total_memory / GIB:.1f} GiB, compute capability "
            f"{properties.major}.{properties.minor}, torch {torch.__version__}, {runtime}")


def advise_on_product(fault: str) -> str:
    """What to do about a GPU that torch reports as available but that does not compute."""
    name, capability = "unknown", "unknown"
    try:
        import torch

        name = torch.cuda.get_device_name(0)
        capability = "{}.{}".format(*torch.cuda.get_device_capability(0))
    except Exception:               # a device in a bad state may not even tell its name
        pass
    for pattern, line in GEMM_ADVICE:
        if re.search(pattern, fault, re.IGNORECASE | re.DOTALL):
            return line.format(name=name, capability=capability)
    return f"a first small product failed ({fault.splitlines()[0]}). Restart the kernel; if it stays, {GET_TORCH}."


# without torch: is there an NVIDIA GPU at all?

def seen_gpu() -> str:
    """Name of an NVIDIA GPU that the operating system knows of, "" when there is none."""
    smi = shutil.which("nvidia-smi") or next(filter(os.path.exists, ["/usr/lib/wsl/lib/nvidia-smi"]), None)
    if smi:
        try:
            listing = subprocess.run([smi, "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=SMI_S,
                                     text=True, errors="replace").stdout
        except (OSError, subprocess.SubprocessError):
            listing = ""
        if match := re.search(r"GPU \d+: (.+?)(?: \(UUID|$)", listing, re.MULTILINE):
            return match[1]
    return driver_gpu(Path("/proc/driver/nvidia/gpus"))


def driver_gpu(folder: Path) -> str:
    """Model of the first GPU under the Linux driver's folder, "" without one."""
    for information in sorted(folder.glob("*/information")):
        try:
            match = re.search(r"Model:\s*(.+)", information.read_text(errors="replace"))
        except OSError:
            continue
        return match[1].strip() if match else "unknown model"
    return ""


def advise_on_absence(gpu: str, said: str) -> str:
    """What to do when the system has ``gpu`` but torch reports none; ``said``: torch's own warnings."""
    import torch

    if torch.version.cuda is None:
        return (f"this machine has one ({gpu}), but this torch is a CPU build (as Windows' standard wheels are). "
                f"{GET_TORCH}: run it with {sys.executable} -m pip, {AGAIN}.")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return (f"this machine has one ({gpu}), but CUDA_VISIBLE_DEVICES={visible!r} hides it: unset that variable, "
                f"{AGAIN}.")
    if re.search(r"too old|insufficient", said):
        return (f"the driver of {gpu} is too old for CUDA {torch.version.cuda}: update the driver, or install an older "
                f"CUDA build of torch. {GET_TORCH}, {AGAIN}.")
    if sys.platform == "linux" and not any(Path(node).exists() for node in ("/dev/nvidia0", "/dev/dxg")):
        return f"this machine has one ({gpu}), but it was not passed into this container: start that with --gpus all."
    reason = f" ({said.splitlines()[0]})" if said else ""
    return (f"this machine has one ({gpu}), but CUDA does not start{reason}: restart the computer; if it stays, update "
            f"the driver. {GET_TORCH}.")
