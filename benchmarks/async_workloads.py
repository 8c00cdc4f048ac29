"""Lesson 07's loop with many random workloads, on the simulated device: the synchronous loop's tokens, every time.

    python benchmarks/async_workloads.py                             10,000 workloads, about a quarter of an hour
    python benchmarks/async_workloads.py --count 100 --seed 5        fewer, and others
    python benchmarks/async_workloads.py --output results/async_workloads.json

Needs no GPU. ``async_workloads_made.py`` says what a workload is and what has to hold. A workload is known by seed and
number: ``run(draw(random.Random("1/77")))`` is number 77 of seed 1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.async_workloads_made import draw, run  # noqa: E402
from benchmarks.machine import describe_machine  # noqa: E402

COUNTED = ("workloads", "requests", "tokens", "steps", "ended_by_eos", "ended_by_limit", "cancelled", "sent_again",
           "preempted", "skipped", "prompts_in_chunks", "wasted_rows")


def measure(count: int, seed: int) -> dict[str, Any]:
    """Run that many; the first failures in words."""
    begin, counts, failures, hazards = time.perf_counter(), Counter(), [], 0
    for n in range(count):
        outcome = run(draw(random.Random(f"{seed}/{n}")))
        counts += outcome.counts
        hazards += outcome.hazards
        if outcome.wrong:
            failures.append({"number": n, "wrong": outcome.wrong})
        if sys.stderr.isatty() and n % 100 == 99:
            print(f"\r{n + 1} of {count}, {len(failures)} wrong", end="", file=sys.stderr)
    machine = describe_machine() | {"cpu_cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return {"machine": machine, "seed": seed, "counts": {name: counts[name] for name in COUNTED},
            "hazards": hazards, "failures": len(failures), "failed": failures[:20],
            "seconds": round(time.perf_counter() - begin, 1)}


def table(result: dict[str, Any]) -> str:
    """What was counted, as a table for a page."""
    rows = {name.replace("_", " "): number for name, number in result["counts"].items()}
    rows |= {"hazards": result["hazards"], "workloads in which anything is wrong": result["failures"]}
    return "\n".join(["| counted | |", "|---|---|", *(f"| {name} | {number:,} |" for name, number in rows.items())])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)                # operations this small gain nothing from more
    result = measure(chosen.count, chosen.seed)
    print(table(result))
    for failed in result["failed"]:
        print(f"workload {failed['number']}: {'; '.join(failed['wrong'])}")
    if chosen.output:
        chosen.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
