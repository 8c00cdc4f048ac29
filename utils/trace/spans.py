"""The columns of a trace: one array per property, times in whole nanoseconds, sorted by start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import TraceError

KINDS = ("kernel", "h2d", "d2h", "d2d", "memset", "host", "sync")
LANES = ("host", "h2d", "compute", "d2h", "sync")
LANE_OF_KIND = ("compute", "h2d", "d2h", "compute", "compute", "host", "sync")
KIND_CODES = {kind: code for code, kind in enumerate(KINDS)}
LANE_CODES = {lane: code for code, lane in enumerate(LANES)}
LANE_BY_KIND = np.array([LANE_CODES[lane] for lane in LANE_OF_KIND], dtype=np.int8)
WORK_KINDS = ("kernel", "h2d", "d2h", "d2d", "memset")     # what occupies the device

COLUMNS = ("name", "kind", "lane", "stream", "start_us", "duration_us", "bytes", "correlation")
REQUIRED = ("name", "kind", "start_us", "duration_us")
EXTRAS = ("device", "graph", "track")
DEFAULTS = {"stream": -1, "bytes": 0, "correlation": -1, "device": 0, "graph": 0, "track": -1}
NS_PER_US = 1000
LIMIT_US = 2.0**53 / NS_PER_US                             # 104 days: nanoseconds are exact in a double


@dataclass(frozen=True, eq=False)
class Spans:
    """n spans: what ran, where, when. Arrays of length n, sorted by start."""

    name: NDArray[np.object_]
    kind: NDArray[np.int8]               # index into KINDS
    lane: NDArray[np.int8]               # index into LANES
    stream: NDArray[np.int64]            # -1: none, as on the host
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    bytes: NDArray[np.int64]             # 0: moves none
    correlation: NDArray[np.int64]       # joins a device span to its launch on the host; -1: none
    device: NDArray[np.int64]            # -1 on the host
    graph: NDArray[np.int64]             # CUDA graph the span was replayed from; 0: none
    track: NDArray[np.int64]             # index into the trace's tracks (process, thread); -1: none

    def __len__(self) -> int:
        return len(self.name)

    def take(self, chosen: NDArray[Any]) -> Spans:
        """The spans at these indices, or where this mask is True."""
        return Spans(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def same(self, other: Spans) -> bool:
        """Whether every column but the track is equal."""
        return all(np.array_equal(getattr(self, field.name), getattr(other, field.name))
                   for field in fields(self) if field.name != "track")

    def columns(self) -> dict[str, NDArray[Any]]:
        """Name, kind and lane as objects (str), stream, bytes, correlation as int64, times as float64 microseconds."""
        return {
            "name": self.name,
            "kind": np.array(KINDS, dtype=object)[self.kind],
            "lane": np.array(LANES, dtype=object)[self.lane],
            "stream": self.stream,
            "start_us": self.start_ns / NS_PER_US,
            "duration_us": self.duration_ns / NS_PER_US,
            "bytes": self.bytes,
            "correlation": self.correlation,
        }


def sorted_spans(columns: Mapping[str, NDArray[Any]]) -> Spans:
    """Spans from a complete set of arrays in any order."""
    order = np.argsort(columns["start_ns"], kind="stable")
    return Spans(**{field.name: columns[field.name][order] for field in fields(Spans)})


def spans_from_columns(columns: Mapping[str, Sequence[Any]]) -> Spans:
    """Spans from public columns: those of ``COLUMNS``, and ``device`` and ``graph`` where known.

    Needed are name, kind, start_us and duration_us; lane follows from kind, the others have defaults.
    Raises TraceError for a missing or unknown column, unequal lengths, an unknown kind or lane, a time that is not
    finite, a negative duration, or a whole number that is none.
    """
    _check_shape(columns)
    size = len(columns["name"])
    whole = {name: whole_numbers(name, columns.get(name), size, default) for name, default in DEFAULTS.items()}
    kind = _codes("kind", columns["kind"], KIND_CODES)
    lane = _codes("lane", columns["lane"], LANE_CODES) if "lane" in columns else LANE_BY_KIND[kind]
    if "device" not in columns:
        whole["device"] = np.where(kind == KIND_CODES["host"], -1, 0)
    duration_ns = nanoseconds("duration_us", columns["duration_us"])
    if (duration_ns < 0).any():
        at = int(np.argmax(duration_ns < 0))
        seen = f"duration_us of {columns['name'][at]!r} (row {at}) is {columns['duration_us'][at]}"
        raise TraceError(f"{seen}: give 0 or more")
    times = {"start_ns": nanoseconds("start_us", columns["start_us"]), "duration_ns": duration_ns}
    return sorted_spans({"name": _names(columns["name"]), "kind": kind, "lane": lane, **times, **whole})


def _check_shape(columns: Mapping[str, Sequence[Any]]) -> None:
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise TraceError(f"no column {missing[0]!r}: a trace needs {', '.join(REQUIRED)}")
    unknown = [name for name in columns if name not in COLUMNS + EXTRAS]
    if unknown:
        raise TraceError(f"unknown column {unknown[0]!r}: a trace has {', '.join(COLUMNS)}, device and graph")
    sizes = {name: len(values) for name, values in columns.items()}
    if len(set(sizes.values())) > 1:
        raise TraceError(f"columns of unequal length: {sizes}")


def _names(values: Sequence[Any]) -> NDArray[np.object_]:
    names = np.empty(len(values), dtype=object)
    # lone surrogates have no place in a file
    names[:] = [str(value).encode("utf-8", "replace").decode() for value in values]
    return names


def _codes(column: str, values: Sequence[Any], codes: Mapping[str, int]) -> NDArray[np.int8]:
    try:
        return np.array([codes[value] for value in values], dtype=np.int8)
    except KeyError as error:
        raise TraceError(f"unknown {column} {error.args[0]!r}: one of {', '.join(codes)}") from None


def whole_numbers(column: str, values: Sequence[Any] | None, size: int, default: int) -> NDArray[np.int64]:
    """``size`` whole numbers; None, for all or for one of them, stands for ``default``. Raises TraceError."""
    if values is None:
        return np.full(size, default, dtype=np.int64)
    try:
        return np.array([default if value is None else value.__index__() for value in values], dtype=np.int64)
    except (AttributeError, OverflowError):
        bad = next(value for value in values if not _is_int64(value))
        raise TraceError(f"{column} is {bad!r}: give whole numbers of 64 bits, or None") from None


def _is_int64(value: Any) -> bool:
    return value is None or (hasattr(value, "__index__") and -2**63 <= value.__index__() < 2**63)


def nanoseconds(column: str, values: Sequence[Any]) -> NDArray[np.int64]:
    """Microseconds as whole nanoseconds. Raises TraceError for what is no number, or none below 104 days."""
    try:
        micro = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise TraceError(f"{column} must be numbers of microseconds, got {list(values)[:3]}...") from None
    sound = np.abs(micro) < LIMIT_US
    if not sound.all():
        seen = f"{column} is {micro[~sound][0]} in row {int(np.argmin(sound))}"
        raise TraceError(f"{seen}: give finite microseconds below 104 days")
    return np.rint(micro * NS_PER_US).astype(np.int64)
