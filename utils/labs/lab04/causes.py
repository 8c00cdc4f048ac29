"""Which copy or product of a double buffer starts later than it could, and what it waits for, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...trace import Trace

TOUCH_US = 0.5     # rounding, between the end of one operation and the start of one that waited for it
LEAST_US = 12.0    # that are worth a word; more than the better part of a copy and of a product is looked for first
PRODUCTS = ("mm", "linear", "matmul", "dot", "einsum")
OWN_COPY = " A product needs its own copy and no later one: has each buffer an event of its own?"
WRAPPED = (" If every call begins with the same buffer, then with an odd number of layers the last layer and the next "
           "call's first take the same one. Let the calls go on in turn.")


@dataclass(frozen=True)
class Span:
    """A copy or a product: when it ran, in which stream, when the host had queued it (µs), and its number in calls."""

    start: float
    end: float
    stream: int
    queued: float
    index: int


def spans_of(trace: Trace, kind: str, names: tuple[str, ...] = ("",)) -> list[Span]:
    """The spans of a kind whose name holds one of ``names``, in order of their start."""
    columns = trace.columns
    rows = list(zip(columns["kind"], columns["name"], columns["start_us"], columns["duration_us"], columns["stream"],
                    columns["correlation"], strict=True))
    queued = {link: start + took for what, _, start, took, _, link in rows if what == "host" and link >= 0}
    found = [Span(start, start + took, stream, queued.get(link, start), link)
             for what, name, start, took, stream, link in rows if what == kind and any(part in name for part in names)]
    return sorted(found, key=lambda span: (span.start, span.end))


def products(trace: Trace) -> list[Span]:
    """The matrix products of a trace."""
    return spans_of(trace, "kernel", PRODUCTS)


def copies(trace: Trace) -> list[Span]:
    """The copies to the device."""
    return spans_of(trace, "h2d")


def first_late(trace: Trace, layers: int, calls: int = 1, among: int | None = None) -> str:
    """The first operation that a double buffer would start earlier, and why it is late; "" when there is none.

    Only for traces with one copy and one product per layer; for others a general sentence. ``among``: look only at so
    many layers.
    """
    loads, work, total = copies(trace), products(trace), layers * calls
    if len(work) != total or len(loads) < total:
        return (f"There are {len(loads)} copies and {len(work)} products, where one of each per layer makes {total}: "
                "what else is done?")
    work = work[:among]
    shortest = min(span.end - span.start for span in (*loads, *work))
    return (_first_late(loads, work, (layers, calls), max(LEAST_US, 0.8 * shortest))
            or _first_late(loads, work, (layers, calls), LEAST_US))


def _first_late(loads: list[Span], work: list[Span], shape: tuple[int, int], least_us: float) -> str:
    layers = shape[0]
    for i, product in enumerate(work):
        free = max(loads[i - 1].end if i else loads[0].queued, work[i - 2].end if i >= 2 else 0.0)
        if loads[i].start > free + least_us:
            says = _late("copy", i, loads[i], free, work, shape)
            return says + (WRAPPED if i and i % layers == 0 and layers % 2 else "")
        ready = max(loads[i].end, work[i - 1].end if i else 0.0)
        if product.start > ready + least_us:
            return _late("product", i, product, ready, loads, shape)
    return ""


def who(trace: Trace, numbers: tuple[int, ...], layers: int, calls: int = 1) -> str:
    """Which layers the operations with these numbers belong to, in words; "" unless all are copies or products."""
    names = {}
    for what, found in (("copy", copies(trace)), ("product", products(trace))):
        for place, span in enumerate(sorted(found, key=lambda span: span.index)):
            names[span.index] = f"#{span.index} is the {what} of {label(place, layers, calls)}"
    return f"({', '.join(names[number] for number in numbers)}.)" if set(numbers) <= set(names) else ""


def label(place: int, layers: int, calls: int) -> str:
    """Layer ``place``, counted over all calls, in words."""
    return f"layer {place % layers}" + (f" of call {place // layers + 1}" if calls > 1 else "")


def _late(what: str, place: int, span: Span, possible: float, others: list[Span], shape: tuple[int, int]) -> str:
    name, lost = f"The {what} of {label(place, *shape)}", f"{span.start - possible:.0f} µs"
    since, other = (("a buffer was free", "product") if what == "copy"
                    else ("its copy and the product before it", "copy"))
    if span.queued > possible + LEAST_US and span.start - span.queued < LEAST_US:
        return f"{name} is queued only {lost} after {since}."
    causes = [at for at, before in enumerate(others) if possible < before.end <= span.start + TOUCH_US]
    if not causes:
        return f"{name} starts {lost} after {since}."
    cause = causes[-1]
    same = " (both are in one stream)" if others[cause].stream == span.stream else ""
    says = f"{name} starts only after the {other} of {label(cause, *shape)}{same}, {lost} after {since}."
    return says + (OWN_COPY if what == "product" and cause > place else "")
