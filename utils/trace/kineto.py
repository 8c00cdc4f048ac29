"""A Kineto file to spans: chunk by chunk into columns, then times from zero and a look at what is odd."""

from __future__ import annotations

import gc
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .checks import clip_negative, tell_overlaps, tell_span, warn
from .errors import TraceWarning
from .jsontext import EventText
from .memory import Levels
from .memory_rows import MemoryReader, is_memory
from .pairing import pair
from .progress import progress_bar
from .rows import RowReader, column
from .source import read_source
from .spans import Spans, sorted_spans
from .stamps import BadStamp, digits_ns, stamps_ns

OWN_MARK = "backToBack"          # key of files that Trace.save wrote: their times and kinds are taken as they stand
KEPT_META = ("deviceProperties", "cuda_driver_version", "cuda_runtime_version", "cupti_version")
Row = dict[str, Any]


class Loaded(NamedTuple):
    """Everything a file holds that a trace keeps."""

    spans: Spans
    annotations: Spans
    tracks: tuple[tuple[Any, Any], ...]      # (process, thread) as in the file
    meta: dict[str, Any]
    skipped: dict[str, int]                  # category -> rows that are not work
    memory: Levels | None                    # None: the file does not tell


def load_kineto(path: str | os.PathLike[str], *, progress: bool | None = None) -> Loaded:
    """Read a trace file whole, or raise TraceError."""
    source = read_source(path)
    reader = KinetoReader(EventText(source))
    with _no_garbage_collection(), progress_bar(len(source.text), "reading trace", progress) as done:
        for events, start, end in reader.text.chunks():
            reader.add(events, start, end)
            done(end - start)
        return reader.finish()


class KinetoReader:
    """Collects columns chunk by chunk."""

    def __init__(self, text: EventText) -> None:
        self.text, self.rows, self.memory = text, RowReader(), MemoryReader()
        self.batches: list[dict[str, NDArray[Any]]] = []
        self.halves: list[tuple[int, Row]] = []          # B and E rows with their time
        self.skipped: Counter[str] = Counter()
        self.no_duration: list[str] = []

    def add(self, events: list[Any], start: int, end: int) -> None:
        """Take one chunk of parsed events."""
        try:
            self._add(events, start, end)
        except BadStamp as bad:
            raise self._bad_stamp(bad, events, start) from None
        except (AttributeError, TypeError, KeyError):
            index = next((index for index, event in enumerate(events) if not self._well_formed(event)), None)
            if index is None:
                raise
            problem = f"an event of the wrong shape: {str(events[index])[:60]}"
            raise self.text.source.fail(self.text.element_offset(start, index), problem) from None

    def finish(self) -> Loaded:
        """All columns in one piece, times from zero, oddities told."""
        self._add_pairs()
        label, own = self.text.source.label, self._own()
        columns = {key: np.concatenate([batch[key] for batch in self.batches]) for key in self.batches[0]}
        clip_negative(columns, label)
        work = ~columns.pop("note")
        origin = 0 if own else columns["start_ns"][work].min() if work.any() else None
        columns["start_ns"] -= origin or 0
        spans, notes = (sorted_spans({key: column[chosen] for key, column in columns.items()})
                        for chosen in (work, ~work))
        self._tell(label, spans, own)
        meta = {key: self.text.meta[key] for key in KEPT_META if key in self.text.meta}
        memory = self.memory.levels(origin, own=own)
        return Loaded(spans, notes, tuple(self.rows.tracks), meta, dict(self.skipped), memory)

    # --- one chunk --------------------------------------------------------------------------------------------------

    def _add(self, events: list[Any], start: int, end: int) -> None:
        rows, codes, points, skipped = self._sorted_out(events)
        starts = None if self.text.quote_stamps else stamps_ns(column(rows + points, "ts"))
        if starts is None:
            if not self.text.quote_stamps:
                self.text.quote_stamps = True
                events[:] = self.text.parse(start, end)
                rows, codes, points, skipped = self._sorted_out(events)
            starts = digits_ns(column(rows + points, "ts"))
        durations = self._durations(rows)
        self.skipped += skipped
        if points:
            self._add_points(points, starts[len(rows):])
        self._add_columns(rows, codes, starts[:len(rows)], durations)

    def _add_points(self, points: list[Row], times: NDArray[np.int64]) -> None:
        """Keep rows that have a time and no duration: halves of spans for later, memory as it is."""
        told = [is_memory(point) for point in points]
        self.halves += [half for half, of_memory in zip(zip(times.tolist(), points, strict=True), told, strict=True)
                        if not of_memory]
        if any(told):
            self.memory.add(list(compress(points, told)), times[np.array(told)])

    def _sorted_out(self, events: list[Any]) -> tuple[list[Row], NDArray[np.int16], list[Row], Counter[str]]:
        """Complete rows that count, what they are, rows that stand for one moment, and what was left out.

        Those of one moment are the beginnings and ends of spans, and what tells of memory.
        """
        phases = column(events, "ph")
        complete = list(compress(events, [phase == "X" for phase in phases]))
        points: list[Row] = []
        if "B" in phases or "E" in phases:
            points = [event for event in events if event.get("ph") in ("B", "E")]
        if "i" in phases:
            points += [event for event in events if is_memory(event)]
        rows, codes, skipped = self.rows.choose(complete)
        return rows, codes, points, skipped

    def _durations(self, rows: list[Row]) -> NDArray[np.int64]:
        durations = column(rows, "dur")
        if None in durations:
            self.no_duration += [str(row.get("name")) for row in rows if row.get("dur") is None]
            durations = [0 if value is None else value for value in durations]
        nano = stamps_ns(durations)
        return digits_ns(durations) if nano is None else nano

    def _add_columns(self, rows: list[Row], codes: NDArray[np.int16], starts: NDArray[np.int64],
                     durations: NDArray[np.int64]) -> None:
        columns = self.rows.columns(rows, codes, own=self._own())
        self.batches.append({**columns, "start_ns": starts, "duration_ns": durations})

    def _own(self) -> bool:
        return OWN_MARK in self.text.meta

    # --- what is wrong or odd ---------------------------------------------------------------------------------------

    def _bad_stamp(self, bad: BadStamp, events: list[Any], start: int) -> Exception:
        """The error for the first event whose ts or dur is no time."""
        for index, event in enumerate(events):
            for key in ("ts", "dur"):
                value = event.get(key)
                timed = event.get("ph") in ("X", "B", "E") or is_memory(event)
                if timed and value is bad.value and (key == "ts" or value is not None):
                    problem = f"the event {event.get('name')!r} has {key} {value!r}: not a time in microseconds"
                    return self.text.source.fail(self.text.element_offset(start, index), problem)
        return self.text.source.fail(start, str(bad))

    @staticmethod
    def _well_formed(event: Any) -> bool:
        if not isinstance(event, dict) or not isinstance(event.get("args") or {}, dict):
            return False
        return not any(isinstance(event.get(key), list | dict) for key in ("cat", "pid", "tid", "ph"))

    def _add_pairs(self) -> None:
        pairs, open_names, extra_ends = pair(self.halves)
        rows, codes, skipped = self.rows.choose([row for row, _, _ in pairs])
        times = {id(row): (start, duration) for row, start, duration in pairs}
        starts, durations = (np.array([times[id(row)][at] for row in rows], dtype=np.int64) for at in (0, 1))
        self.skipped += skipped
        self._add_columns(rows, codes, starts, durations)
        label = self.text.source.label
        warn(label, open_names, "begin and never end: kept with duration 0")
        if extra_ends:
            warnings.warn(f"{label}: {extra_ends} end events have no beginning: left out", TraceWarning, stacklevel=2)

    def _tell(self, label: str, spans: Spans, own: bool) -> None:
        warn(label, self.no_duration, "have no duration: kept with duration 0")
        warn(label, self.rows.unclear_copies, "are copies whose name tells no direction: kept as d2d")
        if self.memory.left_out:
            warnings.warn(f"{label}: {self.memory.left_out} rows about memory tell no total or another kind of device: "
                          "left out", TraceWarning, stacklevel=2)
        tell_span(spans, label)
        if not own:
            tell_overlaps(spans, label)
        if self.skipped and not len(spans):
            seen = ", ".join(f"{name} ({count})" for name, count in self.skipped.most_common(5))
            text = f"{label}: no span in it is of a category that PyTorch writes, only: {seen}"
            warnings.warn(text, TraceWarning, stacklevel=2)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Millions of fresh dicts without a cycle among them: looking for cycles would take as long as reading."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
