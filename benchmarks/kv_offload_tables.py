"""What a result of kv_offload.py says about its limits, and its tables in Markdown.

    python benchmarks/kv_offload_tables.py benchmarks/results/kv_offload_h200.json
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.kv_offload_steps import DECODE, PREFILL, RESIDENT, SERIAL, STREAMED, WITHIN
from benchmarks.onload_tables import grid, interval
from benchmarks.onload_targets import at_most, entry

OVER_BOUND, TRACE_ERROR = 1.02, 0.01
MIB = 2**20


# ---- limits

def targets(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry per limit: what, which value was found, whether it is met."""
    return [each for case in result["cases"] for each in of_case(case)] + [
        each for row in result["failures"] for each in of_failure(row)] + [
        each for row in result["pictures"] for each in of_picture(row)]


def of_case(case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    where = f"{case['shape']}, chunks of {case['chunk']}"
    for kind in (PREFILL, DECODE):
        if case[kind]:
            yield at_most(f"{where}: steady {kind} over max(compute, transfer)", OVER_BOUND, case[kind]["over_bound"])
    for program, repeats in case["wrong"].items():
        found = {what: sum(each[what] for each in repeats) for what in ("scores", "tokens")}
        yield entry(f"{where}, {program}: steps with other scores and other tokens, none", found,
                    not any(found.values()))
    for what in ("cache_bytes", "peak_bytes"):
        yield entry(f"{where}: {what} within the budget of {case['budget_bytes']}", case[what],
                    case[what] <= case["budget_bytes"])


def of_failure(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield entry(f"{row['shape']}: steps with other scores and other tokens after 2 that failed in the middle, none",
                {"failed": len(row["failed_steps"]), **row["wrong"]},
                len(row["failed_steps"]) == 2 and not any(row["wrong"].values()))


def of_picture(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "error" in row:
        yield entry(f"{row['shape']}: a chunk recorded with its memory", row["error"], False)
        return
    off = row["trace_peak_bytes"] / row["allocator_peak_bytes"] - 1
    yield entry(f"{row['shape']}: peak in the trace within {TRACE_ERROR:.0%} of the allocator's", round(off, 5),
                abs(off) <= TRACE_ERROR)
    peak = row.get("requested_peak_bytes", row["allocator_peak_bytes"])     # the first recording has the latter only
    yield entry(f"{row['shape']}: peak within weights, budget and working memory", peak, peak <= row["budget_bytes"])


# ---- tables

def tables(result: dict[str, Any]) -> Iterator[str]:
    """The link; steady steps; each step; memory; the prefix again; transformers."""
    yield link(result)
    for kind in (PREFILL, DECODE):
        yield steady(result, kind)
    if all("host_ms" in case[DECODE] for case in result["cases"]):
        yield host(result)
    for name in dict.fromkeys(case["shape"] for case in result["cases"]):
        yield steps(next_to_middle([case for case in result["cases"] if case["shape"] == name]))
    yield memory(result)
    yield prefixes(result)
    if result.get("transformers"):
        yield transformers(result["transformers"])


def next_to_middle(cases: list[dict[str, Any]]) -> dict[str, Any]:
    return cases[len(cases) // 2]


def link(result: dict[str, Any]) -> str:
    found = [each for case in result["cases"] for each in case["link"]]
    names = {"in, GB/s": "in_rate", "out, GB/s": "out_rate", "share of both while both run": "share",
             "of in": "share_in", "of out": "share_out"}

    def spread(name: str) -> str:
        values = [each[name] for each in found]
        digits = 3 if "share" in name else 1
        return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"
    return grid("link", list(names), [(f"median of {len(found)}", [spread(name) for name in names.values()])])


def steady(result: dict[str, Any], kind: str) -> str:
    heads = ["steps", RESIDENT, "transfer", "bound", WITHIN, STREAMED, SERIAL, f"{STREAMED} / bound",
             f"{SERIAL} / bound"]
    rows = []
    for case in result["cases"]:
        if found := case[kind]:
            times = [f"{found['ms_per_step'][name]['median']:.2f}" if name in found["ms_per_step"] else ""
                     for name in heads[1:7]]
            serial = interval(found["serial_over_bound"]) if found["serial_over_bound"] else ""
            rows.append((f"{case['shape']}, {case['chunk']}",
                         [str(found["steps"]), *times, interval(found["over_bound"]), serial]))
    return grid(f"{kind}, ms per steady step, by chunk", heads, rows)


def host(result: dict[str, Any]) -> str:
    """How long a resident decode step keeps the host, beside the bound of a streamed one: medians, and the range.

    A streamed step's launches wait for the device, when they are as far ahead as they may be, and tell nothing.
    """
    def cell(found: dict[str, Any]) -> str:
        return f"{found['median']:.1f} ({min(found['all']):.1f} to {max(found['all']):.1f})"
    heads = ["bound", f"host, {RESIDENT}", STREAMED]
    rows = []
    for case in result["cases"]:
        found = case[DECODE]["ms_per_step"]
        rows.append((f"{case['shape']}, {case['chunk']}",
                     [cell(found["bound"]), cell(case[DECODE]["host_ms"][RESIDENT]), cell(found[STREAMED])]))
    return grid("decode, ms per steady step", heads, rows)


def steps(case: dict[str, Any]) -> str:
    heads = ["MiB in", "MiB out", f"MiB {WITHIN}", RESIDENT, "transfer", "bound", STREAMED]
    rows = []
    for row in case["steps"]:
        moved = [f"{row[name] / MIB:.1f}" for name in ("in_bytes", "out_bytes", "device_bytes")]
        times = [f"{row[f'{name}_ms']:.2f}" for name in heads[3:]]
        rows.append((f"{row['kind']} at {row['at']}", moved + times))
    return grid(f"{case['shape']}, chunks of {case['chunk']}, ms", heads, rows)


def memory(result: dict[str, Any]) -> str:
    heads = ["all rows, MiB", "budget, MiB", "allocated", "peak of the run", "steps with other scores"]
    return grid("cache on the GPU", heads, [
        (f"{case['shape']}, {case['chunk']}",
         [f"{case[name] / MIB:.0f}" for name in ("resident_bytes", "budget_bytes", "cache_bytes", "peak_bytes")]
         + [str(sum(each["scores"] for each in case["wrong"][STREAMED]))]) for case in result["cases"]])


def prefixes(result: dict[str, Any]) -> str:
    heads = ["MiB", "computed again, ms", "copied back, ms", "ratio"]
    return grid("prefix", heads, [
        (f"{name}, {row['tokens']} tokens",
         [f"{row['bytes'] / MIB:.0f}", *(f"{row[f'{way}_ms']['median']:.2f}" for way in ("recompute", "copy")),
          f"{row['recompute_over_copy']['mean']:.2f}"])
        for name, rows in result["prefixes"].items() for row in rows])


def transformers(found: dict[str, Any]) -> str:
    heads = ["ms, last chunk", "ms, last token", "memory beyond the weights, MiB", "steps with other scores, by repeat"]
    return grid(f"transformers, {found['shape']}, {found['tokens']} tokens in chunks of {found['chunk']}", heads, [
        (name, [f"{way[f'last_{kind}_ms']['median']:.1f}" for kind in (PREFILL, DECODE)]
         + [f"{way['extra_bytes'] / MIB:.0f}", ", ".join(map(str, way["wrong_steps"]))])
        for name, way in found["ways"].items()])


if __name__ == "__main__":
    print("\n\n".join(tables(json.loads(Path(sys.argv[1]).read_text()))))
