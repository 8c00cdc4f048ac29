"""Small Kineto files for the tests of the trace reader, written the way torch.profiler writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utils.trace import Trace

BASE_NS = 1_790_857_026_000_000_000


def row(
    cat: str,
    name: str,
    ts: str,
    dur: str | None = "1.000",
    *,
    pid: Any = 0,
    tid: Any = 7,
    ph: str = "X",
    **args: Any,
) -> str:
    """One event; ``ts`` and ``dur`` are written digit for digit."""
    length = "" if dur is None else f', "dur": {dur}'
    return (
        f'  {{\n    "ph": "{ph}", "cat": "{cat}", "name": {json.dumps(name)}, "pid": {json.dumps(pid)}, '
        f'"tid": {json.dumps(tid)},\n    "ts": {ts}{length},\n    "args": {json.dumps(args)}\n  }}'
    )


def kernel(
    ts: str, dur: str | None = "1.000", *, stream: int = 7, device: int = 0, name: str = "gemm", **args: Any
) -> str:
    """A kernel on a stream."""
    return row("kernel", name, ts, dur, pid=device, tid=stream, stream=stream, device=device, **args)


def copy(
    ts: str, dur: str = "1.000", *, name: str = "Memcpy HtoD (Pinned -> Device)", stream: int = 13, **args: Any
) -> str:
    """A memory copy, into the device unless its name says otherwise."""
    return row("gpu_memcpy", name, ts, dur, tid=stream, stream=stream, device=0, **{"bytes": 1024, **args})


def text(
    rows: Sequence[str],
    *,
    head: str = '"schemaVersion": 1, "displayTimeUnit": "ms",',
    tail: str = ', "traceName": "t.json"',
) -> str:
    """A whole file around the rows."""
    return "{\n  " + head + '\n  "traceEvents": [\n' + ",\n".join(rows) + "\n  ]" + tail + "\n}\n"


def write(folder: Path, content: str | bytes, name: str = "t.json") -> Path:
    """Write it byte for byte and return the path."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def small(memory: Any = None, **changes: Any) -> Trace:
    """Two copies and two kernels; the second copy runs half under the first kernel."""
    columns = {
        "name": ["c0", "c1", "k0", "k1"],
        "kind": ["h2d", "h2d", "kernel", "kernel"],
        "stream": [1, 1, 0, 0],
        "start_us": [0.0, 10.0, 15.0, 40.0],
        "duration_us": [10.0, 10.0, 15.0, 10.0],
    }
    return Trace.from_columns({**columns, **changes}, memory=memory)
