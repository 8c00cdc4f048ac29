"""What one torch.cuda.synchronize() after each call costs a model, and how much of that is the host's way back to work.

    python benchmarks/after_wait.py --output FILE

The link, or the compute engine, rests from the end of a call until the host has returned from the wait and launched
the next copy, or product. Events follow every copy and every product: what is *lost* is the distance of two of them
across a wait, over the median distance within a call. Host times are read with a clock around the same launches.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.machine import describe_machine
from benchmarks.onload_programs import onload, random_weights

COPY_BOUND, COMPUTE_BOUND, WIDTH, LAYERS, CALLS, ROUNDS = 8192, 16384, 8192, 24, 12, 3


class Marks:
    """Events after the operations of one kind, and the host's clock (in µs) when each had been launched."""

    def __init__(self, count: int):
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(count)]
        self.launched: list[float] = []

    def put(self) -> None:
        self.events[len(self.launched)].record()
        self.launched.append(time.perf_counter() * 1e6)

    def distances(self) -> list[float]:
        """Microseconds from the end of each operation to that of the next."""
        return [1000 * a.elapsed_time(b) for a, b in itertools.pairwise(self.events[:len(self.launched)])]


def one_by_one(ring: Any, weights: list[torch.Tensor], x: torch.Tensor, calls: int) -> dict[str, Any]:
    """Calls on a ring with a synchronise after each: what every wait but the last lost, and the host's times."""
    layers = len(weights)
    copies, products = Marks(layers * calls + len(ring.buffers)), Marks(layers * calls)

    def copy_in(i: int, buffer: torch.Tensor) -> None:
        buffer.copy_(weights[i], non_blocking=True)
        copies.put()

    ring.copy_in, returned, before = copy_in, [], []
    for _ in range(calls):
        before.append(len(copies.launched))
        y = x
        for i in range(layers):
            with ring.layer(i) as weight:
                y = y @ weight
                products.put()
        torch.cuda.synchronize()
        returned.append(time.perf_counter() * 1e6)
    firsts = [layers * call for call in range(1, calls)]
    later = [b - a for a, b in itertools.pairwise(products.launched)]
    return {"link_lost_us": across(copies.distances(), before[1:]),
            "compute_lost_us": across(products.distances(), firsts),
            "first_copy_launched_us": since(returned, copies.launched, before[1:]),
            "first_product_launched_us": since(returned, products.launched, firsts),
            "later_layers_us": [statistics.median(later[n + 2:n + layers - 1]) for n in firsts]}


def across(distances: list[float], firsts: list[int]) -> list[float]:
    """The distances that lead to these operations, each less the median of the others."""
    usual = statistics.median(us for n, us in enumerate(distances, 1) if n not in firsts)
    return [distances[n - 1] - usual for n in firsts]


def since(returned: list[float], launched: list[float], firsts: list[int]) -> list[float]:
    """From the return of each wait to the launch after it."""
    return [launched[n] - back for n, back in zip(firsts, returned, strict=False)]


def rows(weights: list[torch.Tensor], batches: tuple[int, ...], calls: int, rounds: int) -> list[dict[str, Any]]:
    """One row per batch size and order of launches, which take turns."""
    rings = {first: onload.RingMLP(weights).ring for first in (True, False)}
    found: dict[tuple[int, bool], list[dict[str, Any]]] = {(batch, first): [] for batch in batches for first in rings}
    width, dtype = weights[0].shape[0], weights[0].dtype
    inputs = {batch: torch.randn(batch, width, dtype=dtype, device="cuda") for batch in batches}
    for ring in rings.values():
        one_by_one(ring, weights, inputs[batches[0]], 2)
    for _ in range(rounds):
        for (batch, first), runs in found.items():
            rings[first].copy_first = first
            runs.append(one_by_one(rings[first], weights, inputs[batch], calls))
    return [{"batch": batch, "copy_first": first, "waits": rounds * (calls - 1)}
            | {key: spread([us for run in runs for us in run[key]]) for key in runs[0]}
            for (batch, first), runs in found.items()]


def spread(values: list[float]) -> dict[str, float]:
    """Median, and the tenth and ninetieth percentile."""
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return {"median": round(statistics.median(values), 1), "p10": round(tenths[0], 1), "p90": round(tenths[-1], 1)}


def table(found: list[dict[str, Any]]) -> str:
    """In Markdown."""
    def cell(key: str) -> Callable[[dict[str, Any]], str]:
        return lambda row: "{median:.0f} ({p10:.0f} to {p90:.0f})".format(**row[key])
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "batch": lambda row: str(row["batch"]), "launched first": lambda row: ("product", "copy")[row["copy_first"]],
        "lost on the link": cell("link_lost_us"), "lost in computing": cell("compute_lost_us"),
        "host, until a copy is launched": cell("first_copy_launched_us"),
        "until a product is": cell("first_product_launched_us"), "host per layer, later": cell("later_layers_us")}
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join(lines + ["| " + " | ".join(show(row) for show in columns.values()) + " |" for row in found])


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--batches", type=int, nargs="+", default=(COPY_BOUND, COMPUTE_BOUND))
    options = parser.parse_args(arguments)
    found = rows(random_weights(options.layers, options.width), tuple(options.batches), CALLS, ROUNDS)
    options.output.write_text(json.dumps({"machine": describe_machine(), "rows": found}, indent=1) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
