"""Rows of a Kineto file that tell of memory, to levels and back.

With profile_memory=True, torch.profiler writes an instant event "[memory]" for each allocation and free, on the thread
that asked: "Bytes" (below 0: a free), "Addr", and the totals after it, "Total Allocated" and "Total Reserved", of the
device "Device Type", "Device Id" (https://github.com/pytorch/kineto, MetadataFieldCatalog.h; PyTorch numbers the types
in c10/core/DeviceType.h). Its total is without freed blocks that another stream still needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .memory import HOST_DEVICE, Levels, sorted_levels
from .rows import NO_ARGS, Row, column, whole

MEMORY_NAME = "[memory]"
HELD = "Held"                    # of files that Trace.save wrote: freed, still needed by another stream
CPU_TYPE, CUDA_TYPE = 0, 1
UNKNOWN = -1
Columns = dict[str, NDArray[np.int64]]


def is_memory(event: Row) -> bool:
    """Whether an event of the file is an allocation or a free."""
    return event.get("ph") == "i" and event.get("name") == MEMORY_NAME


class MemoryReader:
    """Collects rows about memory chunk by chunk; ``left_out`` counts those without a total or of other devices."""

    def __init__(self) -> None:
        self.batches: list[Columns] = []
        self.left_out = 0

    def add(self, rows: list[Row], times: NDArray[np.int64]) -> None:
        args = [row.get("args") or NO_ARGS for row in rows]
        kind = whole(column(args, "Device Type", UNKNOWN), UNKNOWN)
        device = whole(column(args, "Device Id", 0), 0)
        batch = {
            "time_ns": times,
            "allocated": whole(column(args, "Total Allocated", UNKNOWN), UNKNOWN),
            "reserved": whole(column(args, "Total Reserved", 0), 0),
            "held": whole(column(args, HELD, 0), 0),
            "device": np.where(kind == CPU_TYPE, HOST_DEVICE, np.maximum(device, 0)),
            "change": whole(column(args, "Bytes", 0), 0),
        }
        sound = (batch["allocated"] >= 0) & np.isin(kind, (CPU_TYPE, CUDA_TYPE))
        self.left_out += int((~sound).sum())
        self.batches.append({name: values[sound] for name, values in batch.items()})

    def levels(self, origin: int | None, *, own: bool) -> Levels | None:
        """All rows, times from ``origin`` (None: from the first row); None when there are none.

        Totals are known after a change, so a row in front says what there was before the first one; in files of the
        course's ``own`` making it stands already.
        """
        if not self.batches:
            return None
        columns = {name: np.concatenate([batch[name] for batch in self.batches]) for name in self.batches[0]}
        if not columns["time_ns"].size:
            return None
        columns["time_ns"] -= columns["time_ns"].min() if origin is None else origin
        change = columns.pop("change")
        if not own:
            columns = _with_beginning(columns, change)
        return sorted_levels(columns)


def _with_beginning(columns: Columns, change: NDArray[np.int64]) -> Columns:
    """The same with a row per device in front: at 0, or at the first change when that is earlier."""
    order = np.argsort(columns["time_ns"], kind="stable")
    _, first = np.unique(columns["device"][order], return_index=True)
    first = order[first]
    begin = {name: values[first] for name, values in columns.items()}
    begin["allocated"] = np.maximum(begin["allocated"] - change[first], 0)
    begin["time_ns"] = np.minimum(begin["time_ns"], 0)
    return {name: np.concatenate((begin[name], columns[name])) for name in columns}


def memory_rows(levels: Levels, pid: int, us: Any) -> Iterator[str]:
    """Each level as the profiler's event on thread 0 of ``pid``, and as a counter, which viewers draw as a curve."""
    before: dict[int, int] = {}
    held_on = {int(device) for device in np.unique(levels.device[levels.held > 0])}
    columns = (levels.time_ns, levels.allocated, levels.held, levels.reserved, levels.device)
    for time, allocated, held, reserved, device in zip(*(values.tolist() for values in columns), strict=True):
        host = device == HOST_DEVICE
        args = {"Total Reserved": reserved, "Total Allocated": allocated, "Bytes": allocated - before.get(device, 0),
                "Device Id": device, "Device Type": CPU_TYPE if host else CUDA_TYPE}
        before[device] = allocated
        curve = {"allocated": allocated}
        if device in held_on:
            args[HELD] = curve["held"] = held
        yield (f'{{"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "{MEMORY_NAME}", "pid": {pid}, "tid": 0, '
               f'"ts": {us(time)}, "args": {json.dumps(args)}}}')
        yield (f'{{"ph": "C", "name": "memory", "pid": {pid if host else device}, "tid": 0, "ts": {us(time)}, '
               f'"args": {json.dumps(curve)}}}')
