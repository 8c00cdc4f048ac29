"""Judge of the break-even puzzle: how many rows make a layer's product as long as its copy."""

from __future__ import annotations

import math

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..answercode import numbers_in
from ..check import Answer, Refused, call
from ..values import number, shown
from ..verdict import Picture, Tick, Verdict

EXAMPLE_WIDTH = 8192
CASES = (   # FLOP/s, bytes/s, bytes of a weight (None: left to the default)
    (24e12, 19.7e9, None),
    (683e12, 55.3e9, None),
    (683e12, 55.3e9, 1),
    (12e12, 12.6e9, 4),
    (100e12, 25e9, 0.5),
)
ROWS = 1.0               # how far a right answer may be off: it may be rounded to whole rows
NEAR = 0.002             # relative: how closely a wrong factor is recognised
GIB = 2**30 / 1e9
FACTORS = (
    (0.5, "Half of it. A weight takes part in one multiplication and one addition per row: 2 operations, not 4."),
    (2.0, "Twice as much. A weight takes part in a multiplication and an addition per row: 2 operations, not 1."),
    (1 / GIB, "25 GB/s are 25·10^9 bytes per second, and bytes_per_s is given in bytes. 2^30 is a GiB: no rate is "
              "given in it."),
    (GIB, "25 GB/s are 25·10^9 bytes per second, and bytes_per_s is given in bytes. 2^30 is a GiB: no rate is "
          "given in it."),
    (8, "8 times as much: everything is in bytes, none of it in bits."),
    (1 / 8, "An eighth of it: everything is in bytes, none of it in bits."),
    *((10.0**power, f"Off by 10^{power}: the arguments are in FLOP/s and bytes/s already, not in TFLOP/s or GB/s.")
      for power in (-12, -9, -6, -3, 3, 6, 9, 12)),
)
UNKNOWN = ("Set equal: bytes / copy rate = operations / compute rate. A layer of n × n weights has how many bytes, and "
           "needs how many operations for B rows?")


def wanted_rows(flops_per_s: float, bytes_per_s: float, bytes_per_weight: float) -> float:
    """F·s / (2·BW): rows at which 2·rows·n² operations take as long as s·n² bytes, for every width n."""
    return flops_per_s * bytes_per_weight / (2 * bytes_per_s)


def judge_break_even_rows(answer: Answer) -> Verdict:
    """Rows at which copy and product of a layer take the same time, to within one row."""
    shown_picture = None
    for flops, rate, size in CASES:
        bytes_per_weight = 2 if size is None else size
        on = f"{flops / 1e12:g} TFLOP/s, {rate / 1e9:g} GB/s, {bytes_per_weight:g} byte(s) per weight"
        given = call("break_even_rows", answer, *((flops, rate) if size is None else (flops, rate, size)), on=on)
        wanted, rows = wanted_rows(flops, rate, bytes_per_weight), number(given)
        rows = None if rows is None else float(rows)   # an int may be too large to calculate with
        picture = _picture(flops, rate, bytes_per_weight, wanted if rows is None else rows)
        if rows is None or abs(rows - wanted) > ROWS:
            says = _explain(rows, wanted, bytes_per_weight, numbers_in(answer))
            if rows is not None:
                says += "\n" + _witness(flops, rate, bytes_per_weight, rows)
            raise Refused(Verdict("break_even_rows", [Tick("correct", False, f"{shown(given)} rows with {on}")],
                                  says=says, picture=picture))
        shown_picture = shown_picture or picture
    tick = Tick("correct", True, f"{wanted_rows(*CASES[0][:2], 2):.0f} rows with 24 TFLOP/s and 19.7 GB/s, "
                                 "whatever the width")
    tried = "; ".join(f"{flops / 1e12:g} TFLOP/s, {rate / 1e9:g} GB/s, {2 if size is None else size:g} B"
                      for flops, rate, size in CASES)
    return Verdict("break_even_rows", [tick], tried=tried, picture=shown_picture)


def _explain(rows: float | None, wanted: float, size: float, numbers: set[float]) -> str:
    if rows is None:
        return "Return one number: rows."
    near = [says for factor, says in _factors(size) if abs(rows / wanted - factor) <= NEAR * factor]
    says = near[0] if near else UNKNOWN
    width = next((int(item) for item in sorted(numbers) if item >= 256 and item in {2**i for i in range(8, 18)}), None)
    if width:
        says += (f" {width} stands in your function: the bytes grow with the square of the width, and so do the "
                 "operations for a row. The width cancels.")
    return says


def _factors(size: float) -> tuple[tuple[float, str], ...]:
    """Wrong by which factor, for which reason; what is said of a weight's size counts where that differs from 2."""
    unused = (2 / size, f"bytes_per_weight is not used: with {size:g} instead of 2 bytes the copy is {size / 2:g} "
                        "times as long, the product is not.")
    upside_down = (1 / size**2, "bytes_per_weight is on the wrong side: larger weights take longer to copy, so more "
                                "rows are needed.")
    without = (1 / size, "bytes_per_weight is missing: it is bytes that are copied, not weights.")
    special = (unused, upside_down, without) if size != 2 else (upside_down,)
    return tuple(row for row in special if row[0] != 1) + FACTORS


def _times_ms(flops: float, rate: float, size: float, rows: float) -> tuple[float, float]:
    copy = size * EXAMPLE_WIDTH**2 / rate * 1e3
    return copy, 2 * rows * EXAMPLE_WIDTH**2 / flops * 1e3


def _witness(flops: float, rate: float, size: float, rows: float) -> str:
    copy, product = _times_ms(flops, rate, size, rows)
    if not math.isfinite(product):
        return f"With {shown(rows)} rows, a product would never end."
    return (f"With {shown(rows)} rows, a layer of {EXAMPLE_WIDTH} × {EXAMPLE_WIDTH} weights is copied in {copy:.3g} ms "
            f"and multiplied in {product:.3g} ms.")


def _picture(flops: float, rate: float, size: float, rows: float) -> Picture | None:
    """Copy and product of one layer side by side; None where one of them would be too short to see."""
    copy, product = _times_ms(flops, rate, size, rows)
    if not copy / 30 < product < copy * 30:
        return None
    graph = nx.DiGraph()
    graph.add_node("copy", duration=round(copy, 3), resource="h2d", kind="h2d")
    graph.add_node("product", duration=round(product, 3), resource="compute", kind="kernel")
    return timeline(dag.schedule(graph, {"h2d": 1, "compute": 1}), critical=False)
