"""Tables of a result of onload.py in Markdown.

    python benchmarks/onload_tables.py benchmarks/results/onload_h200.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.onload_programs import (
    ACCELERATE,
    COPIES,
    GROUP,
    GROUP_RECORD,
    PLAIN,
    PUBLISHED,
    RESIDENT,
    RING,
    RING_3,
    SERIAL,
)
from benchmarks.onload_targets import over_bound_alike
from benchmarks.onload_windows import BACK_TO_BACK, READ, SYNCHRONIZE

ORDER = (COPIES, RESIDENT, SERIAL, PLAIN, RING, RING_3, PUBLISHED, ACCELERATE, GROUP, GROUP_RECORD)
ALIKE = "over_bound_alike"
RATIOS = (("over max(copy, compute)", "over_bound"), ("over max(copy, compute called alike)", ALIKE),
          ("resident's speed kept", "resident_over_this"),
          ("the same, resident called alike", "resident_in_this_way_over_this"),
          (f"over {GROUP}", f"over {GROUP}"), (f"over {GROUP_RECORD}", f"over {GROUP_RECORD}"),
          (f"over {ACCELERATE}", f"over {ACCELERATE}"))


def grid(corner: str, heads: Sequence[Any], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    lines = [f"| {corner} | " + " | ".join(map(str, heads)) + " |", "|---" * (len(heads) + 1) + "|"]
    return "\n".join(lines + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows])


def by_batch(result: dict[str, Any], rows: Sequence[tuple[str, Callable[[dict[str, Any]], str]]], corner: str) -> str:
    """Rows that have a cell at least."""
    batches = result["mlp"]
    filled = [(name, [cell(row["programs"]) for row in batches]) for name, cell in rows]
    return grid(corner, [row["batch"] for row in batches], [(name, cells) for name, cells in filled if any(cells)])


def time_of(program: str, way: str) -> Callable[[dict[str, Any]], str]:
    def cell(programs: dict[str, Any]) -> str:
        found = programs.get(program, {}).get(way)
        return f"{found['ms']['median']:.2f}" + (" wrong" if any(found["wrong_calls"]) else "") if found else ""
    return cell


def ratio_of(way: str, key: str) -> Callable[[dict[str, Any]], str]:
    def cell(programs: dict[str, Any]) -> str:
        if key == ALIKE:
            found = over_bound_alike(programs) if way == SYNCHRONIZE else None
        else:
            found = programs[RING][way].get(key)
        return interval(found) if found else ""
    return cell


def interval(found: dict[str, Any]) -> str:
    half = f" ± {found['interval'][1] - found['mean']:.4f}" if found["interval"] else ""
    return f"{found['mean']:.4f}{half}"


def tables(result: dict[str, Any]) -> Iterator[str]:
    """Times back to back, with a synchronise and waiting for the result; ratios; memory; the transformer stack."""
    for way in (BACK_TO_BACK, SYNCHRONIZE, READ):
        measured = [name for name in ORDER if any(way in row["programs"].get(name, {}) for row in result["mlp"])]
        yield by_batch(result, [(name, time_of(name, way)) for name in measured], f"ms per call, {way}")
    for way in (BACK_TO_BACK, SYNCHRONIZE, READ):
        yield by_batch(result, [(name, ratio_of(way, key)) for name, key in RATIOS], f"{RING}, {way}")
    yield grid("weights on the GPU", ["at rest, layers", "at the peak, layers", "allocations per call"], [
        (name, [f"{row['held_bytes'] * result['layers'] / held:.0f}", f"{row['peak_beyond_activations_layers']:.0f}",
                f"{row['per_call']['tensors']:.0f}"])
        for held in [result["memory"]["programs"][RESIDENT]["held_bytes"]]
        for name, row in result["memory"]["programs"].items()])
    if "llama" in result:
        yield llama(result["llama"])


def llama(result: dict[str, Any]) -> str:
    heads = [f"ms, {row['tokens']} tokens" for row in result["prefill"]] + ["weights on the GPU when memory peaks, MB"]
    names = list(result["prefill"][0]["programs"])

    def cells(name: str) -> list[str]:
        found = [row["programs"][name] for row in result["prefill"]]
        held = [f"{row['weights_on_gpu_bytes'] / 1e6:.0f}" for row in found if "weights_on_gpu_bytes" in row]
        return [f"{row['ms']['median']:.1f}" for row in found] + (held[-1:] or [""])
    return grid(f"{result['layers']} layers of Llama 3 8B", heads, [(name, cells(name)) for name in names])


if __name__ == "__main__":
    print("\n\n".join(tables(json.loads(Path(sys.argv[1]).read_text()))))
