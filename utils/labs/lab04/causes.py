"""Which copy or product of a double buffer starts later than it could, and what it waits for, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..layers import WEIGHT_BYTES
from ..spans import LEAST_US, TOUCH_US, Span, copies, products, spans_of, whole

if TYPE_CHECKING:
    from ...simgpu import Access, Hazard
    from ...trace import Trace

AHEAD = 2          # copies that two buffers can hold for a call to come
OWN_COPY = " A product needs its own copy and no later one: has each buffer an event of its own?"
WRAPPED = (" If every call begins with the same buffer, then with an odd number of layers the last layer and the next "
           "call's first take the same one. Let the calls go on in turn.")
TOO_MUCH = (" wait_stream waits for everything queued so far, also for a product just launched: wait for the event of "
            "the buffer's last reader.")
REUSED = ("(A tensor that is dropped while another stream than its own still uses it gives its memory away: keep it "
          "longer, or let its own stream wait for the other one.)")


def first_late(trace: Trace, layers: int, calls: int = 1, among: int | None = None) -> str:
    """The first operation that a double buffer would start earlier, and why it is late; "" when there is none.

    Only for traces with one product per layer, whose copies make layers; for others a general sentence. ``among``: look
    only at so many layers.
    """
    loads, work, total = whole(copies(trace)), products(trace), layers * calls
    if loads is None or len(work) != total or len(loads) < total:
        return (f"There are {len(loads or copies(trace))} copies and {len(work)} products, where one of each per layer "
                f"makes {total}: what else is done?")
    work = work[:among]
    shortest = min(span.end - span.start for span in (*loads, *work))
    return (_first_late(loads, work, (layers, calls), max(LEAST_US, 0.8 * shortest))
            or _first_late(loads, work, (layers, calls), LEAST_US)
            or ("" if among else _pieces(len(copies(trace)), len(loads))))


def _pieces(count: int, layers: int) -> str:
    return "" if count <= layers else (f"{count} copies bring {layers} layers. Each takes some time to begin: a few "
                                       "large ones are faster.")


def _first_late(loads: list[Span], work: list[Span], shape: tuple[int, int], least_us: float) -> str:
    for i, product in enumerate(work):
        free = max(loads[i - 1].end if i else loads[0].queued, work[i - 2].end if i >= 2 else 0.0)
        if loads[i].start > free + least_us:
            says = _late("copy", i, loads[i], free, work, shape)
            return says + (WRAPPED if i and _wraps(i, shape) else "")
        ready = max(loads[i].end, work[i - 1].end if i else 0.0)
        if product.start > ready + least_us:
            return _late("product", i, product, ready, loads, shape)
    return ""


def who(trace: Trace, hazard: Hazard, layers: int, windows: list[tuple[float, float]]) -> str:
    """Which layers the two operations of a hazard belong to, in words; "" where that is not certain of both.

    ``windows``: from when to when the host was in each of the calls, which the trace begins with.
    """
    if "was freed" in hazard.remark:   # memory of other tensors, such as buffers made anew: counting tells nothing
        return ""
    sides = [side for side in (hazard.first, hazard.second) if side.stream != "host"]
    names = _names(trace, layers, len(windows)) | _callers(trace, windows)
    told = [_told(side, names, trace) for side in sides]
    return f"({', '.join(told)}.)" if told and all(told) else ""


def _told(side: Access, names: dict[int, str], trace: Trace) -> str:
    links = [link for link in trace.columns["correlation"] if link >= 0]
    if side.index in names:
        return f"#{side.index} is {names[side.index]}"
    if links and side.index < min(links):
        return f"#{side.index} is the constructor's"
    return f"#{side.index} is the caller, who reads the result" if links and side.index > max(links) else ""


def _names(trace: Trace, layers: int, calls: int) -> dict[int, str]:
    """Copies and products by their numbers, where as many as needed were made: then the order tells the layer."""
    names, total = {}, layers * calls
    loads, work = (sorted(found, key=lambda span: span.index) for found in (copies(trace), products(trace)))
    if total <= sum(load.bytes for load in loads) / WEIGHT_BYTES <= total + AHEAD and whole(loads) is not None:
        moved = 0
        for load in loads:
            piece = "the copy" if load.bytes == WEIGHT_BYTES else "a piece of the copy"
            names[load.index] = f"{piece} of {label(moved // WEIGHT_BYTES, layers, calls)}"
            moved += load.bytes
    if len(work) == total:
        names |= {span.index: f"the product of {label(place, layers, calls)}" for place, span in enumerate(work)}
    return names


def _callers(trace: Trace, windows: list[tuple[float, float]]) -> dict[int, str]:
    """The work of the caller, who makes x before each call."""
    work = [span for kind in ("kernel", "d2d") for span in spans_of(trace, kind)]
    return {span.index: "the caller, making `x`" for span in work
            if not any(start < span.queued <= stop for start, stop in windows)}


def label(place: int, layers: int, calls: int) -> str:
    """Layer ``place``, counted over all calls, in words."""
    return f"layer {place % layers}" + (f" of call {place // layers + 1}" if calls > 1 else "")


def _wraps(place: int, shape: tuple[int, int]) -> bool:
    """Whether this is the first layer of a call, and the call before has an odd number of layers."""
    return place % shape[0] == 0 and shape[0] % 2 == 1


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
    if what == "copy" and cause > place - 2 and not same and not (place and _wraps(place, shape)):
        says += (f" With two buffers it has to wait for the product of {label(place - 2, *shape)} alone." if place >= 2
                 else " With two buffers it has to wait for no product.") + TOO_MUCH
    return says + (OWN_COPY if what == "product" and cause > place else "")
