"""Write spans as Kineto JSON: a process per device and for the host, a track per stream, arrows from launch to work."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .memory import HOST_DEVICE, Levels
from .memory_rows import memory_rows
from .spans import KIND_CODES, KINDS, LANES, NS_PER_US, Spans

HOST_PID = 1_000_000             # stands for a host process that is unknown, or known by a device's number
WAITS_TID = 1_000_001            # the waits of stream s get a track of their own, at WAITS_TID + s
BLOCK_ROWS = 20_000              # rows joined before they are written
CATEGORIES = {"kernel": "kernel", "h2d": "gpu_memcpy", "d2h": "gpu_memcpy", "d2d": "gpu_memcpy",
              "memset": "gpu_memset", "host": "cpu_op", "sync": "cuda_sync"}
NOTE_CATEGORIES = {**dict.fromkeys(KINDS, "gpu_user_annotation"), "host": "user_annotation"}
HOST, SYNC = KIND_CODES["host"], KIND_CODES["sync"]
Tracks = Sequence[tuple[Any, Any]]
Places = dict[tuple[int, int], str]      # (pid, tid) -> name of the track


def write_kineto(path: str | os.PathLike[str], spans: Spans, notes: Spans, memory: Levels, tracks: Tracks,
                 meta: Mapping[str, Any]) -> None:
    """Write a trace file; it replaces ``path`` only when it is complete."""
    target = Path(path)
    handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with open(handle, "wb") as raw:
            if target.name.endswith(".gz"):
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=6, mtime=0) as packed:
                    _write(packed, _rows(spans, notes, memory, tracks), meta)
            else:
                _write(raw, _rows(spans, notes, memory, tracks), meta)
        os.chmod(part, 0o666 & ~_umask())
        os.replace(part, target)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The permissions a new file does not get; mkstemp gives none to others."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write(file: Any, rows: Iterator[str], meta: Mapping[str, Any]) -> None:
    head = {"schemaVersion": 1, **meta, "displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "backToBack": 1}
    file.write(json.dumps(head)[:-1].encode() + b',\n"traceEvents": [\n')
    block: list[str] = []
    separator = ""
    for row in rows:
        block.append(row)
        if len(block) == BLOCK_ROWS:
            file.write((separator + ",\n".join(block)).encode())
            block, separator = [], ",\n"
    file.write((separator + ",\n".join(block) if block else "").encode() + b"\n]}\n")


def _rows(spans: Spans, notes: Spans, memory: Levels, tracks: Tracks) -> Iterator[str]:
    places: Places = {}
    work = list(_span_rows(spans, tracks, places, CATEGORIES))
    named = list(_span_rows(notes, tracks, places, NOTE_CATEGORIES))
    if len(memory):
        places.setdefault((HOST_PID, 0), "host thread")
        for device in np.unique(memory.device[memory.device != HOST_DEVICE]).tolist():
            places.setdefault((device, 0), "memory")
    yield from _name_rows(places)
    yield from work
    yield from named
    yield from memory_rows(memory, HOST_PID, _us)
    yield from _arrow_rows(spans, tracks)


def _span_rows(spans: Spans, tracks: Tracks, places: Places, categories: Mapping[str, str]) -> Iterator[str]:
    quoted: dict[str, str] = {}
    for at in range(len(spans)):
        name = spans.name[at]
        quoted_name = quoted.get(name) or quoted.setdefault(name, json.dumps(name))
        kind = KINDS[spans.kind[at]]
        pid, tid = _place(spans, at, tracks, places)
        args = f'"kind": "{kind}", "lane": "{LANES[spans.lane[at]]}", "device": {spans.device[at]}'
        args += f', "stream": {spans.stream[at]}, "correlation": {spans.correlation[at]}, "bytes": {spans.bytes[at]}'
        if spans.graph[at]:
            args += f', "graph id": {spans.graph[at]}'
        yield (f'{{"ph": "X", "cat": "{categories[kind]}", "name": {quoted_name}, "pid": {pid}, "tid": {tid}, '
               f'"ts": {_us(spans.start_ns[at])}, "dur": {_us(spans.duration_ns[at])}, "args": {{{args}}}}}')


def _place(spans: Spans, at: int, tracks: Tracks, places: Places) -> tuple[int, int]:
    """Process and thread to draw a span on."""
    stream, device = int(spans.stream[at]), int(spans.device[at])
    if spans.kind[at] == HOST:
        pid, tid = tracks[spans.track[at]] if 0 <= spans.track[at] < len(tracks) else (None, None)
        place = (HOST_PID, tid if isinstance(tid, int) and -2**31 < tid < 2**31 else 0)
        label = f"thread {tid} of process {pid}" if tid is not None else "host thread"
    elif spans.kind[at] == SYNC:
        place, label = (device, WAITS_TID + stream), f"stream {stream} waits" if stream >= 0 else "device waits"
    else:
        place, label = (device, stream), f"stream {stream}"
    places.setdefault(place, label)
    return place


def _name_rows(places: Mapping[tuple[int, int], str]) -> Iterator[str]:
    for pid in sorted({pid for pid, _ in places}):
        host = pid == HOST_PID
        yield _meta_row("process_name", pid, 0, {"name": "host" if host else f"device {pid}"})
        yield _meta_row("process_labels", pid, 0, {"labels": "CPU" if host else f"GPU {pid}"})
        yield _meta_row("process_sort_index", pid, 0, {"sort_index": -1 if host else pid})
    for (pid, tid), label in sorted(places.items()):
        yield _meta_row("thread_name", pid, tid, {"name": label})
        yield _meta_row("thread_sort_index", pid, tid, {"sort_index": tid})


def _meta_row(name: str, pid: int, tid: int, args: Mapping[str, Any]) -> str:
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args})


def _arrow_rows(spans: Spans, tracks: Tracks) -> Iterator[str]:
    """Flow arrows from the last host span of a correlation (the CUDA call) to each span on the device."""
    launches = {int(spans.correlation[at]): at for at in np.flatnonzero((spans.kind == HOST) & (spans.correlation > 0))}
    for at in np.flatnonzero((spans.kind != HOST) & (spans.kind != SYNC) & (spans.correlation > 0)):
        launch = launches.get(int(spans.correlation[at]))
        if launch is not None:
            for phase, end, extra in (("s", launch, ""), ("f", at, ', "bp": "e"')):
                pid, tid = _place(spans, end, tracks, {})
                yield (f'{{"ph": "{phase}", "cat": "ac2g", "name": "ac2g", "id": {spans.correlation[at]}, '
                       f'"pid": {pid}, "tid": {tid}, "ts": {_us(spans.start_ns[end])}{extra}}}')


def _us(nano: int) -> str:
    """Nanoseconds as microseconds with three decimals, exactly."""
    whole, part = divmod(abs(int(nano)), NS_PER_US)
    return f"{'-' if nano < 0 else ''}{whole}.{part:03d}"
