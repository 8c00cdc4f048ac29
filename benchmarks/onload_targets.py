"""What a result of onload.py says about the limits that the models of lesson 04 are held to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
    STREAMED,
)
from benchmarks.onload_windows import BACK_TO_BACK, READ, SYNCHRONIZE, lower_end, ratio, upper_end

OVER_BOUND, OVER_BOUND_NEAR, OVER_PEER, KEPT = 1.005, 1.02, 1.005, 0.996
NEAR = 0.10                     # copy and compute this close: both sides compete for power and memory
KEPT_FROM_BATCH = 16384
OURS = (PLAIN, RING, RING_3, STREAMED)


def targets(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry per limit: what, which value was found, whether it is met."""
    found = []
    for row in result.get("mlp", ()):
        found += of_batch(row)
    if "memory" in result:
        found += of_memory(result["memory"])
    if "equality" in result:
        found += of_equality(result["equality"])
    return found


def entry(target: str, found: Any, met: bool, mean_met: bool | None = None) -> dict[str, Any]:
    """``state``: "met"; "missed"; or "not shown", when the mean is within the limit and its interval reaches beyond."""
    state = "met" if met else "not shown" if mean_met else "missed"
    return {"target": target, "found": found, "state": state}


def at_most(target: str, limit: float, ratio: dict[str, Any]) -> dict[str, Any]:
    return entry(f"{target} at most {limit}", ratio, upper_end(ratio) <= limit, ratio["mean"] <= limit)


def at_least(target: str, limit: float, ratio: dict[str, Any]) -> dict[str, Any]:
    return entry(f"{target} at least {limit}", ratio, lower_end(ratio) >= limit, ratio["mean"] >= limit)


def bound_limit(copy: float, compute: float) -> float:
    """The limit on time over max(copy, compute)."""
    return OVER_BOUND_NEAR if abs(copy / compute - 1) <= NEAR else OVER_BOUND


def over_bound_alike(programs: dict[str, Any]) -> dict[str, Any] | None:
    """RING over max(copy, compute), a synchronize after each call of RING and of the resident model.

    Copies alone are those back to back: no others are measured. None where the three have not the same repeats.
    """
    ways = ((RING, SYNCHRONIZE), (COPIES, BACK_TO_BACK), (RESIDENT, SYNCHRONIZE))
    if not all(way in programs.get(name, {}) for name, way in ways):
        return None
    ours, copy, compute = (programs[name][way]["ms"]["all"] for name, way in ways)
    if not len(ours) == len(copy) == len(compute):
        return None
    return ratio(ours, [max(each) for each in zip(copy, compute, strict=True)])


def of_batch(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    batch, programs = row["batch"], row["programs"]
    limit = bound_limit(*(programs[name][BACK_TO_BACK]["ms"]["median"] for name in (COPIES, RESIDENT)))
    for way in (BACK_TO_BACK, SYNCHRONIZE, READ):
        ours, where = programs[RING][way], f"batch {batch}, {way}"
        yield at_most(f"{where}: time over max(copy, compute)", limit, ours["over_bound"])
        if way == SYNCHRONIZE and (alike := over_bound_alike(programs)) is not None:
            yield at_most(f"{where}: time over max(copy, compute called alike)", limit, alike)
        for peer in (GROUP, GROUP_RECORD, ACCELERATE):
            if (against := ours.get(f"over {peer}")) is not None:
                yield at_most(f"{where}: time over that of {peer}", OVER_PEER, against)
        if batch >= KEPT_FROM_BATCH:
            yield at_least(f"{where}: share of resident's speed", KEPT, ours["resident_over_this"])
    wrong = sum(sum(row["wrong_calls"]) for name in programs if name in OURS for row in programs[name].values())
    yield entry(f"batch {batch}: calls of ours that differ from resident in any bit, none", wrong, wrong == 0)


def of_memory(memory: dict[str, Any]) -> Iterator[dict[str, Any]]:
    resident = memory["programs"][RESIDENT]["per_call"]
    for name in (PLAIN, RING, STREAMED):
        row = memory["programs"][name]
        yield entry(f"{name}: weights on the GPU at most 2 layers", row["peak_beyond_activations_layers"],
                    row["peak_beyond_activations_layers"] <= 2)
        yield entry(f"{name}: allocations per call those of resident", row["per_call"], row["per_call"] == resident)


def of_equality(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(row["program"] for row in rows):
        if name == PUBLISHED:
            continue
        mine = [row for row in rows if row["program"] == name]
        wrong = sum(row["wrong_calls"] for row in mine)
        layers, batches = (", ".join(map(str, sorted({row[key] for row in mine}))) for key in ("layers", "batch"))
        yield entry(f"{name}: wrong in none of {mine[0]['calls']} calls back to back, layers {layers}, batch {batches}",
                    wrong, wrong == 0)
