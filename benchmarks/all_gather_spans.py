"""What a trace of all_gather.py says: gathers, products, and what they do at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from utils import intervals
from utils.trace import Trace

GATHER, PRODUCT = ("AllGather",), ("nvjet", "gemm")     # kernels of NCCL and of cuBLAS
Times = NDArray[np.float64]


@dataclass
class Seen:
    """Starts and ends in us of the gathers, of the products and of everything on the GPU, each sorted by start."""

    gathers: intervals.Intervals
    products: intervals.Intervals
    all: intervals.Intervals

    @property
    def window_us(self) -> float:
        return float(self.all[1].max() - self.all[0].min())

    @cached_property
    def gathering(self) -> intervals.Intervals:
        return intervals.union(*self.gathers)

    @cached_property
    def computing(self) -> intervals.Intervals:
        return intervals.union(*self.products)

    def shares(self) -> dict[str, float]:
        """Of the time from the first to the last operation."""
        both = intervals.measure(intervals.intersect(self.gathering, self.computing))
        gathers, products = intervals.measure(self.gathering), intervals.measure(self.computing)
        busy = intervals.measure(intervals.union(*self.all))
        parts = {"a product alone": products - both, "a gather alone": gathers - both, "both": both,
                 "something else": busy - (gathers + products - both), "nothing": self.window_us - busy}
        return {name: part / self.window_us for name, part in parts.items()}

    def behind(self) -> float:
        """Share of the gathers' time in which a product runs."""
        both = intervals.measure(intervals.intersect(self.gathering, self.computing))
        return both / intervals.measure(self.gathering)

    def before_the_end_us(self) -> Times:
        """For each gather that begins while a product runs: how long before that product's end."""
        starts, ends = self.products
        begun = np.searchsorted(starts, self.gathers[0], side="right") - 1      # the last product begun by then, or -1
        left = ends[begun[begun >= 0]] - self.gathers[0][begun >= 0]
        return left[left > 0]

    def beside_gathers(self) -> tuple[Times, Times]:
        """Durations in us of the products with gathers beside them for 15 % of their time or more, and of the rest."""
        return in_company(self.products, self.gathering, 0.15)

    def beside_products(self) -> tuple[Times, Times]:
        """Durations in us of the gathers with products beside them for half of their time or more, and of the rest."""
        return in_company(self.gathers, self.computing, 0.5)


def in_company(what: intervals.Intervals, company: intervals.Intervals, part: float) -> tuple[Times, Times]:
    durations = what[1] - what[0]
    beside = np.array([intervals.measure(intervals.clip(company, *span)) for span in zip(*what, strict=True)])
    enough = beside >= part * durations
    return durations[enough], durations[~enough]


def seen(path: Path) -> Seen:
    """Gathers are NCCL's kernels, or copies on the device in streams without products."""
    columns = Trace.load(path).columns
    on_gpu, kinds, streams = (np.asarray(columns[name]) for name in ("lane", "kind", "stream"))
    on_gpu = ~np.isin(on_gpu, ("host", "sync"))
    products = on_gpu & named(columns["name"], PRODUCT)
    copies = on_gpu & (kinds == "d2d") & ~np.isin(streams, streams[products])
    gathers = on_gpu & named(columns["name"], GATHER) | copies
    if not gathers.any() or not products.any():
        raise ValueError(f"{path.name}: {gathers.sum()} gathers and {products.sum()} products: it takes some of both")
    return Seen(*(spans(columns, chosen) for chosen in (gathers, products, on_gpu)))


def named(names: Any, words: tuple[str, ...]) -> NDArray[np.bool_]:
    return np.array([any(word in name for word in words) for name in names])


def spans(columns: Any, chosen: NDArray[np.bool_]) -> intervals.Intervals:
    starts = np.asarray(columns["start_us"], dtype=np.float64)[chosen]
    ends = starts + np.asarray(columns["duration_us"], dtype=np.float64)[chosen]
    order = np.argsort(starts, kind="stable")
    return starts[order], ends[order]


# ---- as cells of tables

def middle(values: Times) -> str:
    return f"{np.median(values):.0f} ({values.min():.0f} to {values.max():.0f})" if values.size else ""


def counted(values: Times) -> str:
    return f"{values.size}: {middle(values)}" if values.size else "0"


def part(name: str) -> Callable[[Seen], str]:
    return lambda found: f"{found.shares()[name]:.1%}"


SEEN: dict[str, dict[str, Callable[[Seen], str]]] = {
    "two calls, share of the time": {
        "ms in all": lambda found: f"{found.window_us / 1000:.1f}",
        **{name: part(name) for name in ("a product alone", "a gather alone", "both", "something else", "nothing")},
        "of the gathers behind products": lambda found: f"{found.behind():.0%}"},
    "two calls, µs": {
        "gathers": lambda found: str(found.gathers[0].size),
        "begun while a product ran: before its end": lambda found: counted(found.before_the_end_us()),
        "products beside a gather": lambda found: counted(found.beside_gathers()[0]),
        "other products": lambda found: counted(found.beside_gathers()[1]),
        "gathers beside a product": lambda found: counted(found.beside_products()[0]),
        "other gathers": lambda found: counted(found.beside_products()[1])}}
