"""What a result of two_models.py says about its limits, and its tables in Markdown.

    python benchmarks/two_models_tables.py benchmarks/results/two_models_h200.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.onload_tables import grid
from benchmarks.onload_targets import entry
from benchmarks.onload_windows import upper_end
from benchmarks.two_models_ways import AHEAD, OURS

GIB = 2**30


# ---- limits

def targets(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry per limit: what, which value was found, whether it is met."""
    found = [each for case in result["cases"] for each in of_case(case, result["copy_ms"]["median"])]
    for row in result["failures"]:
        found.append(entry("the schedule after a step that failed in the middle: result equal", row,
                           row["raised"] and row["equal"]))
    if (row := result.get("too_small")) is not None:
        found.append(entry("a budget that is too small: an error, nothing allocated, nothing moved", row,
                           bool(row["error"]) and row["allocated_bytes"] == row["moved"] == 0))
    return found


def of_case(case: dict[str, Any], copy_ms: float) -> Iterator[dict[str, Any]]:
    where = f"{case['tokens']} tokens"
    for name in OURS:
        if name in case["ways"]:
            wrong = sum(case["ways"][name]["wrong"])
            yield entry(f"{where}, {name}: results that differ from both resident in any bit, none", wrong, wrong == 0)
    if AHEAD not in case["ways"]:
        return
    way = case["ways"][AHEAD]
    yield entry(f"{where}, {AHEAD}: waited for copies at most one layer's copy, {copy_ms:.2f} ms", way["waited_ms"],
                max(way["waited_ms"]["all"]) <= copy_ms)
    yield entry(f"{where}, {AHEAD}: exposed at most one layer's copy, {copy_ms:.2f} ms", way["exposed_ms"],
                upper_end(way["exposed_ms"]) <= copy_ms, way["exposed_ms"]["mean"] <= copy_ms)
    yield entry(f"{where}, {AHEAD}: peak within the budget of {case['budget_bytes']} bytes", way["peak_bytes"],
                way["peak_bytes"] <= case["budget_bytes"])


# ---- tables

def tables(result: dict[str, Any]) -> Iterator[str]:
    """One per number of tokens."""
    for case in result["cases"]:
        yield of_tokens(case, result["copy_ms"]["median"])


def of_tokens(case: dict[str, Any], copy_ms: float) -> str:
    heads = ["repeats", "ms", "exposed, ms", "in copies of a layer", "waited, ms", "peak, GiB", "GiB back", "wrong"]
    rows = [(name, [str(len(way["ms"]["all"])), f"{way['ms']['median']:.1f}", plus_minus(way["exposed_ms"]),
                    f"{way['exposed_ms']['mean'] / copy_ms:.1f}",
                    f"{way['waited_ms']['median']:.2f}" if way["waited_ms"] else "",
                    f"{way['peak_bytes'] / GIB:.2f}", f"{way['bytes_back'] / GIB:.1f}", str(sum(way["wrong"]))])
            for name, way in case["ways"].items()]
    return grid(f"{case['tokens']} tokens", heads, rows)


def plus_minus(found: dict[str, Any]) -> str:
    half = f" ± {found['interval'][1] - found['mean']:.1f}" if found["interval"] else ""
    return f"{found['mean']:.1f}{half}"


if __name__ == "__main__":
    print("\n\n".join(tables(json.loads(Path(sys.argv[1]).read_text()))))
