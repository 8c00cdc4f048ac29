"""Name the loads, layers and stores of a run, and say which one starts later than it could, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ..spans import LEAST_US, PRODUCTS, TOUCH_US, Span, spans_of, whole
from .data import WEIGHT_BYTES

if TYPE_CHECKING:
    from ...simgpu import Access, Hazard
    from ...trace import Trace

TRACE_KINDS = {"load": "h2d", "store": "d2h"}
COPIES = ("load", "store")


class Key(NamedTuple):
    """One step of a program: "load", "layer" or "store", and its number, counted over all calls."""

    kind: str
    number: int


Steps = dict[Key, Span]


class Late(NamedTuple):
    """A step that starts later than it could, in words, and the one whose end it waited for, where that is known."""

    key: Key
    cause: Key | None
    says: str


class Shape(NamedTuple):
    """How many loads, layers and stores a program makes, kernels by name (several make up a layer), and words for its
    steps."""

    counts: Mapping[str, int]
    words: Callable[[Key], str]
    kernels: tuple[str, ...] = PRODUCTS
    per_layer: int = 1


def found(trace: Trace, shape: Shape, kind: str) -> list[Span]:
    """The operations of a kind as they ran, those that belong to no step included."""
    return spans_of(trace, TRACE_KINDS[kind]) if kind in COPIES else spans_of(trace, "kernel", shape.kernels)


def steps_of(trace: Trace, shape: Shape) -> Steps | str:
    """Every step with its times; a sentence where there are more or fewer operations than steps."""
    steps: Steps = {}
    for kind, count in shape.counts.items():
        spans = found(trace, shape, kind)
        made = whole(spans) if kind in COPIES else _grouped(spans, shape.per_layer)
        if made is None or len(made) != count:
            return f"There are {len(spans if made is None else made)} {kind}s where {count} do: what else is done?"
        steps |= {Key(kind, number): span for number, span in enumerate(made)}
    return steps


def _grouped(spans: list[Span], per_layer: int) -> list[Span] | None:
    if len(spans) % per_layer:
        return None
    groups = (spans[at:at + per_layer] for at in range(0, len(spans), per_layer))
    return [Span(group[0].start, group[-1].end, group[0].stream, group[0].queued, group[0].index) for group in groups]


def first_late(steps: Steps, needs: Callable[[Key], Iterable[Key]], shape: Shape,
               one_engine: bool = False) -> Late | None:
    """The first step that could have started earlier, and what it waited for instead."""
    shortest = min(span.end - span.start for span in steps.values())
    for least in (max(LEAST_US, 0.8 * shortest), LEAST_US):   # a large loss is named before a small one
        for key, span in sorted(steps.items(), key=lambda item: item[1].start):
            needed = [need for need in needs(key) if need in steps]
            free = max([steps[need].end for need in needed], default=0.0)
            if one_engine and key.kind in COPIES:
                free = max([free, *(other.end for at, other in steps.items()
                                    if at != key and at.kind in COPIES and other.start < span.start)])
            if span.start > free + least:
                return _late(steps, key, free, needed, shape)
    return None


def _late(steps: Steps, key: Key, free: float, needed: list[Key], shape: Shape) -> Late:
    span, name = steps[key], shape.words(key)
    name, lost = name[0].upper() + name[1:], f"{span.start - free:.0f} µs"
    need = " and ".join(map(shape.words, needed))
    if span.queued > free + LEAST_US and span.start - span.queued < LEAST_US:
        says = f"{name} is queued only {lost} after it could have started"
        return Late(key, None, says + (f": it needs {need}." if need else "."))
    causes = [at for at, other in steps.items() if at != key and free < other.end <= span.start + TOUCH_US]
    if not causes:
        says = f"{name} starts {lost} later than it could"
        return Late(key, None, says + (f": it needs {need}." if need else ": it needs nothing."))
    cause = max(causes, key=lambda at: steps[at].end)
    same = " (both are in one stream)" if steps[cause].stream == span.stream else ""
    says = f"{name} starts only after {shape.words(cause)}{same}, {lost} later than it could. "
    return Late(key, cause, says + (f"It needs {need}, no more." if need else "It needs nothing."))


def who(trace: Trace, hazard: Hazard, shape: Shape, extra: Mapping[int, str] | None = None) -> str:
    """Which steps the two operations of a hazard belong to, in words; "" where that is not certain of both."""
    if "was freed" in hazard.remark:   # other memory: counting tells nothing
        return ""
    names = {index: piece + shape.words(key) for index, (key, piece) in _keys(trace, shape).items()} | dict(extra or {})
    sides = [side for side in (hazard.first, hazard.second) if side.stream != "host"]
    told = [_told(side, names, trace) for side in sides]
    return f"({', '.join(told)}.)" if told and all(told) else ""


def steps_in(trace: Trace, hazard: Hazard, shape: Shape) -> list[Key]:
    """The steps that the two operations of a hazard belong to, as far as that is certain."""
    keys = _keys(trace, shape)
    return [keys[side.index][0] for side in (hazard.first, hazard.second) if side.index in keys]


def _told(side: Access, names: Mapping[int, str], trace: Trace) -> str:
    if side.index in names:
        return f"#{side.index} is {names[side.index]}"
    links = [link for link in trace.columns["correlation"] if link >= 0]
    return f"#{side.index} is the caller, who reads the result" if links and side.index > max(links) else ""


def _keys(trace: Trace, shape: Shape) -> dict[int, tuple[Key, str]]:
    """Steps by the numbers of their operations, and whether one is a piece, in words; only of kinds of which there are
    as many as there should be."""
    keys: dict[int, tuple[Key, str]] = {}
    for kind, count in shape.counts.items():
        spans = sorted(found(trace, shape, kind), key=lambda span: span.index)   # as they were launched
        if kind in COPIES:
            keys |= _copy_keys(spans, kind, count)
        elif len(spans) == count * shape.per_layer:
            keys |= {span.index: (Key(kind, at // shape.per_layer), "") for at, span in enumerate(spans)}
    return keys


def _copy_keys(spans: list[Span], kind: str, count: int) -> dict[int, tuple[Key, str]]:
    if whole(spans) is None or sum(span.bytes for span in spans) != count * WEIGHT_BYTES:
        return {}
    keys, moved = {}, 0
    for span in spans:
        piece = "" if span.bytes == WEIGHT_BYTES else "a piece of "
        keys[span.index] = Key(kind, moved // WEIGHT_BYTES), piece
        moved += span.bytes
    return keys
