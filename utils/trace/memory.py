"""Memory over time: what the allocator said after each allocation and each free.

Three series, each a staircase that holds from one row to the next:

    allocated   to tensors: what ``torch.cuda.memory_allocated()`` says, on CUDA and on the simulated device
    held        in blocks that were freed while another stream still needs them (``record_stream``): not allocated any
                more, not usable yet. The simulated device knows it; a profiler's file does not, and has 0
    reserved    taken from the device by the caching allocator, in use or not

A row stands at the host's call, not at the device's work: the allocator hands out a block when the host asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import TraceError
from .spans import NS_PER_US, nanoseconds, whole_numbers

if TYPE_CHECKING:
    import pandas

HOST_DEVICE = -1
NEEDED = ("us", "bytes")
OPTIONAL = {"held_bytes": 0, "reserved_bytes": 0, "device": 0}
SERIES = ("allocated", "in use", "reserved")


@dataclass(frozen=True, eq=False)
class Levels:
    """n rows for all devices, int64, sorted by time: bytes right after a change."""

    time_ns: NDArray[np.int64]
    allocated: NDArray[np.int64]
    held: NDArray[np.int64]
    reserved: NDArray[np.int64]
    device: NDArray[np.int64]            # -1: the host

    def __len__(self) -> int:
        return len(self.time_ns)

    def take(self, chosen: NDArray[Any]) -> Levels:
        """The rows at these indices, or where this mask is True."""
        return Levels(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def same(self, other: Levels) -> bool:
        return all(np.array_equal(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))


NO_LEVELS = Levels(*(np.empty(0, dtype=np.int64) for _ in fields(Levels)))


def sorted_levels(columns: Mapping[str, NDArray[np.int64]]) -> Levels:
    """Levels from complete arrays in any order; rows of one time keep their order."""
    order = np.argsort(columns["time_ns"], kind="stable")
    return Levels(**{field.name: columns[field.name][order] for field in fields(Levels)})


def levels_from_columns(columns: Mapping[str, Sequence[Any]]) -> Levels:
    """Levels from ``us`` and ``bytes`` (allocated), and ``held_bytes``, ``reserved_bytes``, ``device`` where known.

    Raises TraceError for a missing or unknown column, unequal lengths, a time that is not finite, bytes below 0.
    """
    unknown = [name for name in columns if name not in (*NEEDED, *OPTIONAL)]
    missing = [name for name in NEEDED if name not in columns]
    if unknown or missing:
        what = f"unknown column {unknown[0]!r}" if unknown else f"no column {missing[0]!r}"
        raise TraceError(f"{what} in the record of memory: it has {', '.join((*NEEDED, *OPTIONAL))}")
    sizes = {name: len(values) for name, values in columns.items()}
    if len(set(sizes.values())) > 1:
        raise TraceError(f"columns of unequal length in the record of memory: {sizes}")
    whole = {name: whole_numbers(name, columns.get(name), sizes["us"], OPTIONAL.get(name, 0))
             for name in ("bytes", *OPTIONAL)}
    for name in ("bytes", "held_bytes", "reserved_bytes"):
        if (whole[name] < 0).any():
            at = int(np.argmax(whole[name] < 0))
            raise TraceError(f"{name} in row {at} of the record of memory is {whole[name][at]}: give 0 or more")
    return sorted_levels({"time_ns": nanoseconds("us", columns["us"]), "allocated": whole["bytes"],
                          "held": whole["held_bytes"], "reserved": whole["reserved_bytes"],
                          "device": whole["device"]})


class Memory:
    """Memory of one device over time: arrays of one length, in order of time.

    ``us`` float64, ``bytes`` int64: allocated to tensors from then until the next row; ``held_bytes``: in freed blocks
    that another stream still needs; ``reserved_bytes``: taken from the device. The first row says what there was when
    recording began. ``device``: its number, -1 for the host.
    """

    def __init__(self, levels: Levels, device: int) -> None:
        self._levels = levels.take(levels.device == device)
        self.device = device
        self.us: NDArray[np.float64] = self._levels.time_ns / NS_PER_US
        self.bytes, self.held_bytes = self._levels.allocated, self._levels.held
        self.reserved_bytes = self._levels.reserved

    @property
    def in_use_bytes(self) -> NDArray[np.int64]:
        """``bytes`` and ``held_bytes`` together: what cannot be given to anybody else."""
        return self.bytes + self.held_bytes

    @cached_property
    def table(self) -> pandas.DataFrame:
        """The record as a pandas DataFrame. Raises TraceError where pandas is not installed."""
        try:
            import pandas
        except ImportError:
            raise TraceError("pandas is not installed: install it, or use .us and .bytes, which need numpy alone"
                             ) from None
        return pandas.DataFrame({"us": self.us, "bytes": self.bytes, "held_bytes": self.held_bytes,
                                 "reserved_bytes": self.reserved_bytes})

    def peak_bytes(self, *, start: float | None = None, stop: float | None = None, series: str = "allocated") -> int:
        """The most bytes at any time from start to stop (µs, both included; by default the whole record).

        ``series``: "allocated" as ``torch.cuda.max_memory_allocated()`` counts, "in use" with freed blocks that another
        stream still needs, or "reserved". Raises ValueError for another one and for a window that ends before it
        starts or before the record begins.
        """
        first, last = self._window(start, stop)
        return int(self._series(series)[first:last].max())

    def _series(self, series: str) -> NDArray[np.int64]:
        if series not in SERIES:
            raise ValueError(f"series is {series!r}: give one of {', '.join(map(repr, SERIES))}")
        return dict(zip(SERIES, (self.bytes, self.in_use_bytes, self.reserved_bytes), strict=True))[series]

    def _window(self, start: float | None, stop: float | None) -> tuple[int, int]:
        """First and last + 1 of the rows that hold at some time of the window."""
        if start is not None and stop is not None and not start <= stop:
            raise ValueError(f"the window from {start:g} to {stop:g} us ends before it starts")
        times = self._levels.time_ns
        low = times[0] if start is None else np.rint(start * NS_PER_US)
        last = len(times) if stop is None else int(np.searchsorted(times, np.rint(stop * NS_PER_US), side="right"))
        if not last:
            raise ValueError(f"the window ends at {stop:g} us, before the record of memory begins at {self.us[0]:g} us")
        first = int(np.searchsorted(times, low, side="left"))
        starts_on_a_row = first < len(times) and times[first] == low
        return max(first - (not starts_on_a_row), 0), last

    def __len__(self) -> int:
        return len(self.us)

    def __repr__(self) -> str:
        place = "the host" if self.device == HOST_DEVICE else f"device {self.device}"
        return f"<Memory of {place}: {len(self):,} rows, peak {self.peak_bytes():,} bytes allocated>"


def memory_of(levels: Levels, device: int | None) -> Memory:
    """The record of one device; None: of the only one that has any. Raises ValueError when there is none."""
    known = [int(number) for number in np.unique(levels.device)]
    devices = [number for number in known if number != HOST_DEVICE]
    if not devices and device != HOST_DEVICE:
        raise ValueError("this trace has no record of device memory: record it with record(fn, memory=True), or with "
                         "torch.profiler.profile(profile_memory=True); traces of the simulated device always have one")
    if device is None and len(devices) > 1:
        raise ValueError(f"this trace has the memory of devices {', '.join(map(str, devices))}: "
                         "choose one with only(device=...)")
    chosen = devices[0] if device is None else device
    if chosen not in known:
        seen = ", ".join(map(str, known)) or "none"
        raise ValueError(f"no record of memory for device {chosen}: this trace has {seen}")
    return Memory(levels, chosen)
