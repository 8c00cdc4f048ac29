"""Say where a program of copies and products loses time: the first operation that starts later than it could."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..check import Answer
from ..device import CALLS_US, Run
from ..spans import Span, pageable, spans_of
from ..worked import worked

if TYPE_CHECKING:
    from ...simgpu import Hazard
    from ...trace import Trace



def reference(puzzle: str) -> Answer:
    """The worked answer, which sets the target time."""
    return worked("04_double_buffered_onload", puzzle)


def spans(trace: Trace, kind: str, fills: bool = False) -> list[Span]:
    """The operations of one kind in order of their start: what only fills memory, or all others."""
    return [span for span in spans_of(trace, kind) if span.name.startswith("fill") == fills]


def computed_us(run: Run) -> float:
    """When the last kernel ended: copies behind it, for a later call, are no part of the result."""
    return max((span.end for span in spans(run.trace, "kernel")), default=0.0)


def lost_time(run: Run, layers: int, slots: int, sizes: list[int], calls: int = 1) -> str:
    """What costs time, in words: a late copy, a late product, or more copies than needed.

    ``sizes``: bytes of every layer; larger copies are no onload. A layer may come in several copies. Products are taken
    in order, one per layer.
    """
    products = spans(run.trace, "kernel")
    begin = max((span.end for span in spans(run.trace, "kernel", fills=True)), default=0.0)   # earlier work
    pieces = sum(span.bytes <= max(sizes) for span in spans(run.trace, "h2d"))
    free, copies = _loads(run.trace, sizes, begin)
    moved, enough = sum(copy.bytes for copy in copies), calls * sum(sizes)
    if len(copies) > calls * layers + slots:
        return f"{len(copies)} copies where {calls * layers} are enough: every layer is needed once per call."
    if len(products) != calls * layers or len(copies) < calls * layers:
        return (f"Instead of one copy and one product per layer there are {pieces} copies and {len(products)} "
                "kernels.")
    if len(copies) == calls * layers and moved > enough:
        return f"{moved >> 10} KiB are copied where {enough >> 10} are enough: copy what a layer has, not a whole slot."
    return (_late_copy(copies, free, products, layers, slots)
            or (f"There are {pieces} copies where {len(copies)} are enough, and each takes a few µs to launch and to "
                "begin." if pieces > 2 * len(copies) else "")
            or _late_product(copies, products, spans(run.trace, "d2d"))
            or "Compare the two timelines: which operation starts later than in the target, and what does it wait for?")


def _loads(trace: Trace, sizes: list[int], begin: float) -> tuple[list[float], list[Span]]:
    """When the link was free before each layer, and its copies as one span, whatever number of pieces it came in."""
    free, loads, before, open_ = [], [], begin, False
    for span in spans(trace, "h2d"):
        if span.bytes > max(sizes):   # another program's
            before = span.end
            continue
        if open_:
            loads[-1] = replace(loads[-1], end=span.end, bytes=loads[-1].bytes + span.bytes)
        else:
            free.append(before)
            loads.append(span)
        open_ = loads[-1].bytes < sizes[(len(loads) - 1) % len(sizes)]
        before = span.end
    return free, loads


def _late_copy(copies: list[Span], link_free: list[float], products: list[Span], layers: int, slots: int) -> str:
    for i, (copy, free) in enumerate(zip(copies, link_free, strict=True)):
        if i >= len(products):
            return ""
        read = products[i - slots].end if i >= slots else 0.0
        if copy.start <= max(free, read) + CALLS_US:
            continue
        ended = next((j for j, product in enumerate(products) if abs(product.end - copy.start) < CALLS_US), None)
        says = f"Copy {i} starts at {copy.start:.0f} µs"
        says += f", when product {ended} has ended. " if ended is not None else ". "
        says += (f"The link is free from {free:.0f} µs on, and so is one of the {slots} slots"
                 + (f", since product {i - slots} ended at {read:.0f} µs." if i >= slots else "."))
        if i >= layers and i % layers == 0:
            says += (" This is the first copy of a call. Does the number of its slot count on from the call before, "
                     "and does it wait for that slot alone?")
        return says
    return ""


def _late_product(copies: list[Span], products: list[Span], moves: list[Span]) -> str:
    for i, product in enumerate(products):
        ready = max(copies[i].end, products[i - 1].end if i else 0.0)
        if product.start > ready + CALLS_US:
            if any(ready - CALLS_US < move.start < product.start for move in moves):
                return (f"Product {i} starts at {product.start:.0f} µs instead of {ready:.0f}: before it, the GPU "
                        "copies something from one place of its memory to another.")
            for_copy = next((j for j, copy in enumerate(copies) if abs(copy.end - product.start) < CALLS_US), None)
            says = f"Product {i} starts at {product.start:.0f} µs"
            says += f", when copy {for_copy} has ended" if for_copy is not None else ""
            before = " and the product before it has ended" if i else ""
            return f"{says}. But its own layer has arrived{before} at {ready:.0f} µs."
    return ""


EARLIER = ("(The memory is what torch.empty handed out. Work queued before your code, on the current stream, still "
           "uses it: let the copy stream wait for the current stream once{where}.)")
DROPPED = ("(What was dropped at the end or in between gave its memory back to the stream on which it was made, while "
           "another stream still used it. Keep it, or make it on the stream that uses it last, or let the one wait for "
           "the other before.)")


def reuse_hint(hazard: Hazard, where: str = "") -> str:
    """What to say when the hazard is about memory that was freed and given to another tensor; empty otherwise."""
    if "was freed" not in str(hazard):
        return ""
    return EARLIER.format(where=where) if hazard.first.name.startswith("fill") else DROPPED


def uploaded(run: Run, most: int) -> int:
    """Bytes copied to the device, in copies of at most ``most`` bytes each."""
    return sum(span.bytes for span in spans(run.trace, "h2d") if span.bytes <= most)


def from_pageable(run: Run) -> str:
    """What to say behind a wait of the host, if it copied from pageable memory."""
    if not pageable(run.trace):
        return ""
    return (" A copy from pageable memory is never asynchronous: the weights that you are given are pinned, copies of "
            "them on the host are not.")
