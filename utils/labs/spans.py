"""Read the copies and products of a trace: when each ran, in which stream, and when the host had queued it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .layers import WEIGHT_BYTES

if TYPE_CHECKING:
    from ..trace import Trace

TOUCH_US = 0.5     # rounding, between the end of one operation and the start of one that waited for it
LEAST_US = 12.0    # that are worth a word; more than the better part of a copy and of a product is looked for first
PRODUCTS = ("mm", "linear", "matmul", "dot", "einsum")


@dataclass(frozen=True)
class Span:
    """A copy or a product: when it ran, in which stream, when the host had queued it (µs), and its number in calls."""

    start: float
    end: float
    stream: int
    queued: float
    index: int
    bytes: int = 0
    name: str = ""


def spans_of(trace: Trace, kind: str, names: tuple[str, ...] = ("",)) -> list[Span]:
    """The spans of a kind whose name holds one of ``names``, in order of their start."""
    columns = trace.columns
    rows = list(zip(columns["kind"], columns["name"], columns["start_us"], columns["duration_us"], columns["stream"],
                    columns["correlation"], columns["bytes"], strict=True))
    queued = {link: start + took for what, _, start, took, _, link, _ in rows if what == "host" and link >= 0}
    found = [Span(start, start + took, stream, queued.get(link, start), link, size, name)
             for what, name, start, took, stream, link, size in rows
             if what == kind and any(part in name for part in names)]
    return sorted(found, key=lambda span: (span.start, span.end))


def products(trace: Trace) -> list[Span]:
    """The matrix products of a trace."""
    return spans_of(trace, "kernel", PRODUCTS)


def copies(trace: Trace) -> list[Span]:
    """The copies to the device."""
    return spans_of(trace, "h2d")


def pageable(trace: Trace) -> bool:
    """Whether something was copied to the device from ordinary host memory."""
    return bool(spans_of(trace, "h2d", ("(pageable)",)))


def whole(loads: list[Span]) -> list[Span] | None:
    """The copies put together to layers, from the start of the first piece to the end of the last; None where the bytes
    do not make layers."""
    found, first, held = [], None, 0
    for load in loads:
        first, held = first or load, held + load.bytes
        if held == WEIGHT_BYTES:
            found.append(replace(first, end=load.end, stream=load.stream, bytes=held))
            first, held = None, 0
    return None if first or any(load.bytes > WEIGHT_BYTES for load in loads) else found
