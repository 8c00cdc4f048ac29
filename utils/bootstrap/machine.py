"""What this machine is, as far as installing and starting depend on it."""

import os
import platform
import shutil
import sys
from pathlib import Path

GIB = 1024**3
# torch 2.14 with everything in requirements.txt, Python 3.11, Linux x86-64: the CUDA build and the CPU build
CUDA_BUILD_DISK_GIB, CUDA_BUILD_DOWNLOAD_GIB = 6, 3
CPU_BUILD_DISK_GIB, CPU_BUILD_DOWNLOAD_GIB = 2, 0.5


def sees_nvidia() -> bool:
    """An NVIDIA driver or its tool is there; says nothing about whether torch can use it."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def gets_cuda_build() -> bool:
    """Whether the package index's standard torch wheel for this system carries CUDA: only those for Linux do."""
    return sys.platform == "linux"


def has_display() -> bool:
    """Whether a browser can be opened here."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def free_gib(folder: Path) -> float:
    return shutil.disk_usage(folder).free / GIB


def describe() -> str:
    """Python and platform, for "no wheel for ..." lines."""
    return f"Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.system()} {platform.machine()}"
