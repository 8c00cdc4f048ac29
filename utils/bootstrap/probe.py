"""What a Python environment has, seen from inside it.

Imported here, and run as a file by the environment's own Python: ``python -I probe.py requirements.txt``.
"""

import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path

REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?:>=\s*([0-9.]+))?")


def requirements(path: Path) -> dict[str, str]:
    """Distribution name -> lowest version ("" when any will do), from a file of ``name>=version`` lines."""
    wanted = {}
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        line = line.split("#")[0].strip()
        if match := REQUIREMENT.match(line):
            wanted[match[1]] = match[2] or ""
    return wanted


def release(version: str) -> tuple[int, ...]:
    """Leading numbers of a version without closing zeros: "2.9.0+cu130" -> (2, 9)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def unmet(wanted: dict[str, str]) -> list[str]:
    """What is missing or too old in this environment, as "torch (missing)" or "torch (2.1, needs 2.9)"."""
    faults = []
    for name, lowest in wanted.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            faults.append(f"{name} (missing)")
        else:
            if release(version) < release(lowest):
                faults.append(f"{name} ({version}, needs {lowest})")
    return faults


def describe(path: Path) -> dict[str, object]:
    return {
        "python": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "prefix": sys.prefix,
        "has_pip": importlib.util.find_spec("pip") is not None,
        "unmet": unmet(requirements(path)),
    }


if __name__ == "__main__":
    print(json.dumps(describe(Path(sys.argv[1]))))
