"""What a recorded result was measured on: the card, the versions and the date, and nothing else about the machine."""

from __future__ import annotations

import datetime
import platform
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Name of the GPU (or None), driver and library versions, Python, and today's date (UTC)."""
    import torch

    described: dict[str, Any] = {
        "gpu": None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        described |= {"gpu": properties.name, "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
                      "driver": _driver()}
    return described


def _driver() -> str | None:
    import shutil
    import subprocess

    if not (tool := shutil.which("nvidia-smi")):
        return None
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True)
    return asked.stdout.split("\n")[0].strip() or None
