"""Trace: spans of host, copies and kernels, and the questions every lesson asks of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import intervals
from .errors import TraceError
from .kineto import load_kineto
from .memory import HOST_DEVICE, NO_LEVELS, Levels, Memory, levels_from_columns, memory_of
from .spans import COLUMNS, KIND_CODES, LANE_CODES, NS_PER_US, WORK_KINDS, Spans, spans_from_columns
from .writing import Tracks, write_kineto

if TYPE_CHECKING:
    import pandas

Kinds = str | Iterable[str]
SUFFIXES = (".json", ".json.gz")


class Trace:
    """What ran, on which lane and stream, from when to when; times in microseconds, exact to the nanosecond.

    ``kinds`` in every measure: a kind (``"kernel"``), the lane ``"compute"`` (kernels, copies within the device and
    fills), or several of them. Measures take the union of the spans, so time is counted once however many run side by
    side; on several devices that is the time when any of them ran (``only(device=0)`` looks at one).
    """

    def __init__(self, spans: Spans, annotations: Spans | None = None, *, name: str = "", tracks: Tracks = (),
                 meta: Mapping[str, Any] | None = None, skipped: Mapping[str, int] | None = None,
                 memory: Levels | None = None) -> None:
        self._spans, self._levels = spans, NO_LEVELS if memory is None else memory
        self._notes = spans.take(np.zeros(len(spans), dtype=bool)) if annotations is None else annotations
        self._tracks = tuple(tracks)
        self.name = name
        self.meta = dict(meta or {})             # deviceProperties and versions, as the file gave them
        self.skipped = dict(skipped or {})       # category -> rows of the file that are neither work nor annotation

    # --- make, load, save -------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, progress: bool | None = None) -> Trace:
        """Read a torch.profiler trace (Kineto JSON, plain or gzip); its first span starts at 0.

        ``progress``: show a bar once reading takes over a second; None does so on a terminal and in a notebook.
        Raises FileNotFoundError, or TraceError naming the file and the byte: a trace is read whole or not at all.
        Warns with TraceWarning when something had to be mended, naming how many and the first.
        """
        loaded = load_kineto(path, progress=progress)
        return cls(loaded.spans, loaded.annotations, tracks=loaded.tracks, meta=loaded.meta, skipped=loaded.skipped,
                   memory=loaded.memory, name=Path(path).name.removesuffix(".gz").removesuffix(".json"))

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[Any]], *, name: str = "",
                     annotations: Mapping[str, Sequence[Any]] | None = None,
                     memory: Mapping[str, Sequence[Any]] | None = None) -> Trace:
        """Make a trace of columns as ``columns`` returns them; times are kept as given, to the nanosecond.

        Needed are name, kind, start_us, duration_us; lane follows from kind, stream and correlation default to -1
        (None stands for it), bytes to 0; ``device`` and ``graph`` may be added. ``memory``: us and bytes (allocated
        from then on), held_bytes, reserved_bytes, device where known. Raises TraceError for anything else.
        """
        return cls(spans_from_columns(columns), annotations and spans_from_columns(annotations), name=name,
                   memory=memory and levels_from_columns(memory))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write Kineto JSON, gzip when the name ends in .json.gz, for Perfetto, chrome://tracing and ``load``.

        The file appears whole or not at all. Raises ValueError for another suffix.
        """
        if not os.fspath(path).endswith(SUFFIXES):
            raise ValueError(f"cannot save a trace as {os.fspath(path)!r}: give a name that ends in .json or .json.gz")
        write_kineto(path, self._spans, self._notes, self._levels, self._tracks, self.meta)

    # --- tables -----------------------------------------------------------------------------------------------------

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Arrays by name, sorted by start: name, kind, lane (str), stream (int64, -1 on the host), start_us,
        duration_us (float64), bytes (int64, 0 when none), correlation (int64, -1 when none)."""
        return self._spans.columns()

    @cached_property
    def spans(self) -> pandas.DataFrame:
        """``columns`` as a pandas DataFrame."""
        return _frame(self.columns)

    @cached_property
    def annotations(self) -> pandas.DataFrame:
        """Ranges that the program named (record_function), in the same columns; no work, so no measure counts them."""
        return _frame(self._notes.columns())

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices with at least one span, in order."""
        found = np.unique(self._spans.device[self._spans.kind != KIND_CODES["host"]])
        return tuple(int(device) for device in found)

    @property
    def device_of(self) -> NDArray[np.int64]:
        """Device of each span, -1 on the host."""
        return self._spans.device

    @property
    def graph_of(self) -> NDArray[np.int64]:
        """CUDA graph that each span was replayed from, 0 for none."""
        return self._spans.graph

    @property
    def start_us(self) -> float:
        """Start of the first span; 0 in an empty trace."""
        return float(self._spans.start_ns.min(initial=np.iinfo(np.int64).max)) / NS_PER_US if len(self) else 0.0

    @property
    def stop_us(self) -> float:
        """End of the last span; 0 in an empty trace."""
        return float((self._spans.start_ns + self._spans.duration_ns).max()) / NS_PER_US if len(self) else 0.0

    def streams(self, *kinds: str) -> tuple[int, ...]:
        """Streams that carry these kinds (device work when none is named), in order."""
        chosen = self._mask(kinds or WORK_KINDS)
        return tuple(int(stream) for stream in np.unique(self._spans.stream[chosen]))

    def only(self, *, device: int) -> Trace:
        """The same trace with what one device and the host did. Raises ValueError for a device without any."""
        if device not in self.devices:
            raise ValueError(f"no span on device {device}: this trace has {self.devices}")
        spans, notes, memory = (table.take(np.isin(table.device, (HOST_DEVICE, device)))
                                for table in (self._spans, self._notes, self._levels))
        return Trace(spans, notes, tracks=self._tracks, meta=self.meta, skipped=self.skipped, name=self.name,
                     memory=memory)

    # --- memory -----------------------------------------------------------------------------------------------------

    @property
    def has_memory(self) -> bool:
        """Whether there is a record of device memory."""
        return bool((self._levels.device != HOST_DEVICE).any())

    @property
    def memory(self) -> Memory:
        """Device memory over time: ``.us``, ``.bytes`` and more, one entry per allocation and free.

        Raises ValueError when there is no record, saying how to get one, and for that of several devices.
        """
        return memory_of(self._levels, None)

    def memory_of(self, device: int) -> Memory:
        """The same for one device; -1: the host's, as far as the profiler saw it."""
        return memory_of(self._levels, device)

    def peak_bytes(self, *, start: float | None = None, stop: float | None = None, series: str = "allocated") -> int:
        """The most bytes of device memory at any time (µs) from start to stop; see ``Memory.peak_bytes``."""
        return self.memory.peak_bytes(start=start, stop=stop, series=series)

    # --- measures ---------------------------------------------------------------------------------------------------

    def busy_us(self, kinds: Kinds, *, start: float | None = None, stop: float | None = None) -> float:
        """Time with at least one span of these kinds, in microseconds, between start and stop where given."""
        (busy,) = self._sets(start, stop, kinds)
        return intervals.measure(busy) / NS_PER_US

    def idle_share(self, kinds: Kinds, *, start: float | None = None, stop: float | None = None) -> float:
        """Share of time (0 to 1) without these kinds, from their first start to their last end or as given.

        Raises ValueError when there is no such span and no window.
        """
        chosen = self._mask(kinds)
        begins = self._spans.start_ns[chosen]
        if not begins.size and (start is None or stop is None):
            raise ValueError(f"no span of {kinds!r} in this trace: give start and stop for a share of that time")
        # a window that was given stands; otherwise the spans themselves say from when to when
        first = begins.min() if start is None else start * NS_PER_US
        last = (begins + self._spans.duration_ns[chosen]).max() if stop is None else stop * NS_PER_US
        if last < first:
            raise ValueError(f"the window from {first / NS_PER_US:g} to {last / NS_PER_US:g} us ends before it starts")
        if last == first:
            return 0.0
        return 1.0 - self.busy_us(kinds, start=start, stop=stop) * NS_PER_US / float(last - first)

    def overlap_us(self, kinds: Kinds, others: Kinds, *,
                   start: float | None = None, stop: float | None = None) -> float:
        """Time with a span of ``kinds`` and one of ``others`` at once, in microseconds."""
        return intervals.measure(intervals.intersect(*self._sets(start, stop, kinds, others))) / NS_PER_US

    def uncovered_us(self, kinds: Kinds, others: Kinds, *,
                     start: float | None = None, stop: float | None = None) -> float:
        """Time with a span of ``kinds`` and none of ``others``, such as copies under which no kernel ran, in us."""
        return intervals.measure(intervals.subtract(*self._sets(start, stop, kinds, others))) / NS_PER_US

    def _sets(self, start: float | None, stop: float | None, *groups: Kinds) -> list[intervals.Intervals]:
        """The union of each group of kinds, in nanoseconds from one origin near them, so that doubles are exact."""
        if start is not None and stop is not None and not start <= stop:
            raise ValueError(f"the window from {start:g} to {stop:g} us ends before it starts")
        masks = [self._mask(group) for group in groups]
        begins, lengths = self._spans.start_ns, self._spans.duration_ns
        origin = min((int(begins[mask].min()) for mask in masks if mask.any()), default=0)
        low = -np.inf if start is None else start * NS_PER_US - origin
        high = np.inf if stop is None else stop * NS_PER_US - origin
        whole = [intervals.union(begins[mask] - origin, begins[mask] - origin + lengths[mask]) for mask in masks]
        return [intervals.clip(busy, low, high) for busy in whole]

    def _mask(self, kinds: Kinds) -> NDArray[np.bool_]:
        """Which spans are of these kinds or lanes."""
        names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        unknown = [name for name in names if name not in KIND_CODES and name not in LANE_CODES]
        if unknown or not names:
            wrong = repr(unknown[0]) if unknown else "none"
            raise ValueError(f"unknown kind of span {wrong}: one of {', '.join(KIND_CODES)}, or the lane compute")
        chosen = np.zeros(len(self._spans), dtype=bool)
        for name in names:
            kind = KIND_CODES.get(name)
            chosen |= self._spans.lane == LANE_CODES[name] if kind is None else self._spans.kind == kind
        return chosen

    # --- as a value -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._spans)

    def __eq__(self, other: object) -> bool:
        """Equal spans, annotations and memory, whatever the traces are called and wherever they came from."""
        if not isinstance(other, Trace):
            return NotImplemented
        pairs = zip((self._spans, self._notes, self._levels), (other._spans, other._notes, other._levels), strict=True)
        return all(mine.same(theirs) for mine, theirs in pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        counts = np.bincount(self._spans.kind, minlength=len(KIND_CODES))
        parts = [f"{count:,} {kind}" for kind, count in zip(KIND_CODES, counts, strict=True) if count]
        name = f" {self.name!r}" if self.name else ""
        return f"<Trace{name}: {', '.join(parts) or 'no spans'}; {self.start_us:.1f} to {self.stop_us:.1f} us>"


def _frame(columns: Mapping[str, NDArray[Any]]) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError:
        raise TraceError("pandas is not installed: install it, or use trace.columns, which needs numpy alone") from None
    return pandas.DataFrame({name: columns[name] for name in COLUMNS})
