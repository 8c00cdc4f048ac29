"""What a result of async_batching.py says about its limits, and its tables in Markdown.

    python benchmarks/async_tables.py benchmarks/results/async_batching_h200.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.onload_tables import grid, interval
from benchmarks.onload_targets import at_least, at_most, entry
from benchmarks.onload_windows import lower_end, upper_end

MIB = 2**20
OVER_FLOOR, IDLE_BETWEEN, OVER_GPU, OF_PREDICTED, OFF_BOUND = 1.3, 0.006, 1.02, 0.95, 0.03
HOST_SHARE = 0.15               # from here on the saving is judged: below it there is little to save
TWO_POOLS = (1.8, 2.2)          # the control: what unshared graphs take must show, or nothing was measured


# ---- limits

def targets(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry per limit: what, which value was found, whether it is met."""
    found: list[dict[str, Any]] = []
    for part, judge in (("step", of_step), ("memory", of_memory), ("loops", of_loops), ("sweep", of_sweep)):
        if part in result:
            found += judge(result[part])
    if "loops" in result and (peers := best_peer(result)) is not None:
        name, best = peers
        ours = {name: way["tokens_per_s"]["median"] for name, way in result["loops"]["ways"].items()}
        found.append(entry(f"tokens/s of the best way above transformers' best mode, {name}",
                           {"ours": max(ours.values()), "theirs": best}, max(ours.values()) > best))
    return found


def best_peer(result: dict[str, Any]) -> tuple[str, float] | None:
    done = {name: row["tokens_per_s"] for name, row in (result.get("transformers") or {}).items()
            if "tokens_per_s" in row}
    return max(done.items(), key=lambda each: each[1]) if done else None


def of_step(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        over = row["over_floor"]["graph"]
        yield entry(f"{row['cells']} cells: a decode step as a graph at most {OVER_FLOOR} times its floor", over,
                    over <= OVER_FLOOR)


def of_memory(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    first, second = row["slot_bytes"]
    yield entry("the two slots of the pipeline take exactly the same: twice one", row["slot_bytes"], first == second)
    one, shared, unshared = (row["graph_reserved_bytes"][name] for name in ("one", "two, shared", "two, unshared"))
    if one:
        yield entry("two graphs in one pool reserve at most 1.05 times one", round(shared / one, 4),
                    shared <= 1.05 * one)
        yield entry("two graphs in pools of their own reserve about twice one", round(unshared / one, 4),
                    TWO_POOLS[0] <= unshared / one <= TWO_POOLS[1])


def of_loops(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for pair in row["pairs"]:
        name = pair["asynchronous"]
        idle = row["ways"][name]["idle_between"]
        yield entry(f"{name}: idle between forwards at most {IDLE_BETWEEN:.1%}", idle, max(idle) <= IDLE_BETWEEN,
                    sum(idle) / len(idle) <= IDLE_BETWEEN)
        yield at_most(f"{name}: wall over the synchronous loop's time on the GPU", OVER_GPU,
                      pair["wall_over_synchronous_gpu"])
        if pair["host_share"]["median"] >= HOST_SHARE:
            yield at_least(f"{name}: share of the predicted saving", OF_PREDICTED, pair["saved_of_predicted"])


def of_sweep(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        where, over = f"host busy {row['busy_ms']:g} ms", row["over_predicted"]
        yield entry(f"{where}: wall over max(host, GPU) within {OFF_BOUND:.0%} of 1", over,
                    lower_end(over) >= 1 - OFF_BOUND and upper_end(over) <= 1 + OFF_BOUND,
                    abs(over["mean"] - 1) <= OFF_BOUND)
        if row["host_share"]["median"] >= HOST_SHARE:
            yield at_least(f"{where}: share of the predicted saving", OF_PREDICTED, row["saved_of_predicted"])


# ---- tables

def tables(result: dict[str, Any]) -> Iterator[str]:
    """Of the parts that are there."""
    for part, table in (("step", of_steps), ("loops", of_ways), ("sweep", of_busy), ("memory", of_bytes)):
        if part in result:
            yield table(result)


def of_steps(result: dict[str, Any]) -> str:
    """With kernels of its own, and by PyTorch's operators alone."""
    heads = ["GB read", "floor, ms", "eager", "graph", "graph / floor", "products alone", "attention alone",
             "all else"]
    rows = []
    for row in result["step"]:
        for prefix, how in (("", ", kernels of its own" if row.get("fused") else ""),
                            ("plain ", ", PyTorch's operators")):
            if prefix + "graph" in row["ms"]:
                eager, graph, *parts = (row["ms"][prefix + name]["median"]
                                        for name in ("eager", "graph", "products", "attention"))
                rows.append((f"{row['cells']} cells{how}", [
                    f"{row['nbytes'] / 1e9:.2f}", f"{row['floor_ms']:.2f}", f"{eager:.2f}", f"{graph:.2f}",
                    f"{row['over_floor'][prefix + 'graph']:.3f}",
                    *(f"{ms:.2f}" for ms in (*parts, graph - sum(parts)))]))
    return grid(f"a decode step of {result['slots']} rows, ms", heads, rows)


def of_ways(result: dict[str, Any]) -> str:
    """transformers' modes below ours."""
    heads = ["wall, s", "steps", "ms per step", "tokens/s", "idle between steps, at most", "a kernel runs"]
    active = {name: row["gpu_active"] for name, row in result.get("profile", {}).items()}
    rows = []
    for name, way in result["loops"]["ways"].items():
        wall, steps = way["wall_ms"]["median"], way["steps"][0]
        rows.append((name, [f"{wall / 1000:.2f}", str(steps), f"{wall / steps:.2f}",
                            f"{way['tokens_per_s']['median']:,.0f}", f"{max(way['idle_between']):.2%}",
                            f"{active[name]:.1%}" if name in active else ""]))
    for name, row in (result.get("transformers") or {}).items():
        rows.append((f"transformers, {name}", [row["error"], *[""] * 5] if "error" in row else
                     [f"{row['wall_ms'] / 1000:.2f}", str(row["steps"]), f"{row['ms_per_step']:.2f}",
                      f"{row['tokens_per_s']:,.0f}", "", f"{row['gpu_active']:.1%}" if "gpu_active" in row else ""]))
    return grid("all requests", heads, rows)


def of_busy(result: dict[str, Any]) -> str:
    heads = ["host h, ms", "GPU, ms", "longest launch, ms", "host share", "wall synchronous, ms", "asynchronous",
             "over max(host, GPU)", "saving predicted", "measured", "of the predicted"]
    rows = [(f"{row['busy_ms']:g} ms", [
        f"{row['host_ms']['median']:.2f}", f"{row['gpu_ms']['median']:.2f}",
        f"{row['launch_ms'][0]['longest']:.1f}" if "launch_ms" in row else "", f"{row['host_share']['median']:.1%}",
        f"{row['synchronous, graphs wall_ms']['median']:.1f}", f"{row['asynchronous, graphs wall_ms']['median']:.1f}",
        interval(row["over_predicted"]), f"{row['predicted_saving']['median']:.1%}", f"{row['saving']['median']:.1%}",
        interval(row["saved_of_predicted"])]) for row in result["sweep"]]
    return grid("host busy in each step", heads, rows)


def of_bytes(result: dict[str, Any]) -> str:
    row = result["memory"]
    slots = [sum(slot.values()) for slot in row["slot_bytes"]]
    rows = [("one slot of the pipeline, pinned and on the device", [f"{slots[0]:,}"]),
            ("two slots", [f"{sum(slots):,}"]), ("KV cache", [f"{row['kv_cache_bytes']:,}"]),
            ("weights", [f"{row['weights_bytes']:,}"])]
    rows += [(f"reserved for graphs: {name}", [f"{nbytes:,}"]) for name, nbytes in row["graph_reserved_bytes"].items()]
    return grid("memory", ["bytes"], rows)


if __name__ == "__main__":
    print("\n\n".join(tables(json.loads(Path(sys.argv[1]).read_text()))))
