"""Load a trace of 1,000,000 events and measure it: utils.trace beside HolisticTraceAnalysis, on the same file.

    python benchmarks/trace_load.py                                     # utils.trace alone
    python benchmarks/trace_load.py --peer-python PYTHON --write        # and the peer; writes results/trace_load.md

PYTHON is the interpreter of an environment with the package HolisticTraceAnalysis (extra ``benchmarks``). The file is
generated, the same on every run. Every measurement runs in a fresh process and takes turns with the others.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "trace_load.md"
EVENTS = 1_000_000
LIMIT_S, LIMIT_GB = 6.0, 2.5
RUNS = 3
BASE_NS = 1_790_857_026_000_000_000
FIRST_NS = 5_131_406_945_053_961                # what a Kineto file counts from its base, in ns
STEP_NS, COPY_NS, GEMM_NS, REDUCE_NS = 60_000, 55_000, 41_003, 30_007
HOST_PID, COMPUTE_STREAM, COPY_STREAM, COMM_STREAM = 652, 7, 13, 20
GEMM = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x128_32x4_tn_align8>(Params)"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy HtoD (Pinned -> Device)"


# --- the file ---------------------------------------------------------------------------------------------------------

def write_trace(path: Path, events: int, *, absolute: bool) -> None:
    """A Kineto file of that many events in Kineto's own layout; absolute stamps have 19 digits."""
    head = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "Generated"}], "distributedInfo": {"rank": 0},
            "displayTimeUnit": "ms"}
    if not absolute:
        head["baseTimeNanoseconds"] = BASE_NS
    shift = BASE_NS if absolute else 0
    with _opened(path) as file:
        # HolisticTraceAnalysis looks for the rank on a line of its own
        file.write(json.dumps(head, indent=2)[:-2] + ',\n  "traceEvents": [\n')
        rows = _rows(events - 2, shift)
        file.write(next(rows))
        file.writelines(",\n" + row for row in rows)
        for name in ("Iteration Start: PyTorch Profiler", "Record Window End"):
            file.write(f',\n  {{\n    "name": "{name}", "ph": "i", "s": "g", "pid": "", "tid": "", '
                       f'"ts": {_us(FIRST_NS + shift)}\n  }}')
        file.write('\n  ],\n  "traceName": "generated.json"\n}\n')


def _opened(path: Path) -> IO[str]:
    return gzip.open(path, "wt", compresslevel=6) if path.suffix == ".gz" else path.open("w")


def _rows(count: int, shift: int) -> Iterator[str]:
    step = 0
    while count > 0:
        rows = _step_rows(step, FIRST_NS + shift + step * STEP_NS)
        yield from rows[:count]
        count, step = count - len(rows), step + 1


def _step_rows(step: int, now: int) -> list[str]:
    """One layer: a copy and a GEMM with their operators, launches and arrows; every fourth layer an all-reduce."""
    number, stretch = 10 * step + 1, 37 * (step % 11)
    rows = [_op("aten::copy_", now, 9_112), *_launch("cudaMemcpyAsync", now + 3_000, number),
            _copy(now + 20_000 + stretch, COPY_NS - stretch, number), _arrow("f", now + 20_000 + stretch, number),
            _op("aten::matmul", now + 11_000, 17_411), _op("aten::mm", now + 12_007, 14_998),
            *_launch("cudaLaunchKernel", now + 17_003, number + 1),
            _kernel(GEMM, COMPUTE_STREAM, now + 40_000, GEMM_NS + stretch, number + 1),
            _arrow("f", now + 40_000, number + 1)]
    if step % 4 == 0:
        rows += [*_launch("cudaLaunchKernelExC", now + 29_000, number + 2),
                 _kernel(REDUCE, COMM_STREAM, now + 60_000, REDUCE_NS, number + 2)]
    return rows


def _event(head: str, ts: int, duration: int, args: str) -> str:
    times = f'"ts": {_us(ts)}, "dur": {_us(duration)}'
    return f'  {{\n    "ph": "X", {head},\n    {times},\n    "args": {{\n      {args}\n    }}\n  }}'


def _op(name: str, ts: int, duration: int) -> str:
    head = f'"cat": "cpu_op", "name": "{name}", "pid": {HOST_PID}, "tid": {HOST_PID}'
    return _event(head, ts, duration, f'"External id": {ts % 9973},"Record function id": 0, "Ev Idx": 0')


def _launch(name: str, ts: int, number: int) -> list[str]:
    head = f'"cat": "cuda_runtime", "name": "{name}", "pid": {HOST_PID}, "tid": {HOST_PID}'
    args = f'"External id": {number}, "cbid": 211, "correlation": {number}'
    return [_event(head, ts, 5_207, args), _arrow("s", ts, number)]


def _kernel(name: str, stream: int, ts: int, duration: int, number: int) -> str:
    args = (f'"External id": {number}, "queued": 0, "device": 0, "context": 1,\n      "stream": {stream}, '
            f'"correlation": {number},\n      "registers per thread": 168,\n      "shared memory": 213188,'
            '\n      "blocks per SM": 1.000000,'
            '\n      "warps per SM": 12.000000,\n      "grid": [2, 66, 1],\n      "block": [384, 1, 1],'
            '\n      "est. achieved occupancy %": 0')
    return _event(f'"cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream}', ts, duration, args)


def _copy(ts: int, duration: int, number: int) -> str:
    args = (f'"External id": {number}, "device": 0, "context": 1,\n      "stream": {COPY_STREAM}, '
            f'"correlation": {number},\n      "bytes": 3041280, "memory bandwidth (GB/s)": 55.43889371471246')
    return _event(f'"cat": "gpu_memcpy", "name": "{COPY}", "pid": 0, "tid": {COPY_STREAM}', ts, duration, args)


def _arrow(phase: str, ts: int, number: int) -> str:
    return (f'  {{\n    "ph": "{phase}", "id": {number}, "pid": {HOST_PID}, "tid": {HOST_PID}, "ts": {_us(ts)},\n'
            '    "cat": "ac2g", "name": "ac2g"\n  }')


def _us(nano: int) -> str:
    return f"{nano // 1000}.{nano % 1000:03d}"


# --- one measurement, in a process of its own -------------------------------------------------------------------------

def measure_ours(path: str) -> dict[str, float | str]:
    """Load, then busy time, idle share and overlap."""
    begin = time.perf_counter()
    sys.path.insert(0, str(ROOT))
    from utils.trace import Trace
    start, spent = time.perf_counter(), time.process_time()
    trace = Trace.load(path, progress=False)
    loaded = time.perf_counter()
    found = (f"kernels busy {trace.busy_us('kernel'):.3f} us, idle share {trace.idle_share('kernel'):.6f}, "
             f"copies under kernels {trace.overlap_us('h2d', 'kernel'):.3f} us")
    done = time.perf_counter()
    return {"import_s": start - begin, "load_s": loaded - start, "measure_s": done - loaded,
            "processor_s": time.process_time() - spent, "found": found}


def measure_peer(path: str) -> dict[str, float | str]:
    """HolisticTraceAnalysis: parse, then its idle time and its overlap of communication with computation."""
    begin = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        from hta.trace_analysis import TraceAnalysis
        start, spent = time.perf_counter(), time.process_time()
        analysis = TraceAnalysis(trace_files={0: path})
        loaded = time.perf_counter()
        times = analysis.get_temporal_breakdown(visualize=False)
        overlap = analysis.get_comm_comp_overlap(visualize=False)
        done = time.perf_counter()
    found = (f"device idle {times['idle_time_pctg'][0]} %, compute {times['compute_time_pctg'][0]} %, "
             f"all-reduce under computation {overlap['comp_comm_overlap_pctg'][0]} %")
    return {"import_s": start - begin, "load_s": loaded - start, "measure_s": done - loaded,
            "processor_s": time.process_time() - spent, "found": found}


def peak_gb() -> float:
    """Peak resident memory of this process."""
    with contextlib.suppress(OSError):
        kib = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
        if kib:
            return int(kib[1]) * 1024 / 1e9
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9


def measured(python: str, who: str, path: Path) -> dict[str, float | str]:
    """Run one measurement in a fresh process."""
    command = [python, __file__, "--measure", who, str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"measuring {who} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


# --- the table --------------------------------------------------------------------------------------------------------

def table(results: list[tuple[str, str, list[dict]]], sizes: dict[str, float]) -> str:
    """Markdown rows: medians of seconds, the highest peak."""
    lines = ["| reader | file | MB | load s | measures s | **load + measures s** | processor s | peak GB |",
             "|---|---|---|---|---|---|---|---|"]
    for reader, file, runs in results:
        keys = ("load_s", "measure_s", "processor_s")
        load, rest, spent = (statistics.median(run[key] for run in runs) for key in keys)
        total = statistics.median(run["load_s"] + run["measure_s"] for run in runs)
        peak = max(run["peak_gb"] for run in runs)
        seconds = f"{load:.2f} | {rest:.2f} | **{total:.2f}**"
        lines.append(f"| {reader} | {file} | {sizes[file]:.0f} | {seconds} | {spent:.2f} | {peak:.2f} |")
    return "\n".join(lines)


def machine() -> str:
    """Cores, processor and memory, as far as the system tells."""
    model, memory = platform.processor() or platform.machine(), ""
    with contextlib.suppress(OSError, TypeError):
        model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())[1]
        kib = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]
        memory = f", {int(kib) * 1024 / 1e9:.0f} GB of memory"
    return f"{os.cpu_count()} cores, {model}{memory}, {platform.system()}"


def report(results: list[tuple[str, str, list[dict]]], sizes: dict[str, float], events: int, peer: str) -> str:
    """The page that goes to results/."""
    ours = [run for reader, _, runs in results if reader == "utils.trace" for run in runs]
    worst_s, worst_gb = max(run["load_s"] + run["measure_s"] for run in ours), max(run["peak_gb"] for run in ours)
    versions = f"Python {platform.python_version()}, numpy {version('numpy')}, orjson {version('orjson')}"
    found = {reader: runs[0]["found"] for reader, _, runs in results}
    return "\n".join([
        f"# Loading a trace of {events:,} events", "",
        "Written by `benchmarks/trace_load.py`. `utils.trace`: `Trace.load`, `busy_us`, `idle_share`, `overlap_us`.",
        "HolisticTraceAnalysis: `TraceAnalysis` (parsing), `get_temporal_breakdown`, `get_comm_comp_overlap`.", "",
        f"- machine: {machine()}",
        f"- versions: {versions}" + (f"; {peer}" if peer else ""),
        f"- date: {datetime.now(timezone.utc):%Y-%m-%d}",
        f"- method: runs per row: {len(results[0][2])}, taking turns, each in a fresh process with its imports done; "
        "median seconds, highest peak resident memory; processor seconds do not grow when the machine is busy with "
        "something else", "",
        table(results, sizes), "",
        f"Limit for `utils.trace`: {LIMIT_S:g} s and {LIMIT_GB:g} GB. Its slowest run: {worst_s:.2f} s; "
        f"its highest peak: {worst_gb:.2f} GB.", "",
        "What each one finds:", "", *(f"- {reader}: {text}" for reader, text in found.items()), "",
        "What they count is not the same, so this compares speed and not numbers. HolisticTraceAnalysis calls the",
        "device idle when neither kernel nor copy runs, and its overlap is that of *communication kernels* with",
        "computation; memory copies never enter it. `utils.trace` counts kernels and copies, each as the union of its",
        "spans.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--peer-python", help="interpreter of an environment with HolisticTraceAnalysis")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/trace_load.md")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        who, path = options.measure
        found = (measure_ours if who == "ours" else measure_peer)(path)
        print(json.dumps({**found, "peak_gb": peak_gb()}))
        return
    run_all(options)


def run_all(options: argparse.Namespace) -> None:
    """Generate the files, measure in turns, print the page and write it where asked."""
    with tempfile.TemporaryDirectory() as folder:
        names = {"json": "t.json", "json.gz": "t.json.gz", "json, 19-digit stamps": "a.json"}
        files = {name: Path(folder, file) for name, file in names.items()}
        for name, path in files.items():
            write_trace(path, options.events, absolute="19" in name)
        sizes = {name: path.stat().st_size / 1e6 for name, path in files.items()}
        jobs = [("utils.trace", sys.executable, "ours", name) for name in files]
        peer = ""
        if options.peer_python:
            jobs += [("HolisticTraceAnalysis", options.peer_python, "peer", name) for name in ("json", "json.gz")]
            peer = _peer_versions(options.peer_python)
        results = [(reader, name, []) for reader, _, _, name in jobs]
        for _ in range(options.runs):
            for (_, python, who, name), (_, _, runs) in zip(jobs, results, strict=True):
                runs.append(measured(python, who, files[name]))
    page = report(results, sizes, options.events, peer)
    print(page)
    if options.write:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(page, encoding="utf-8")


def _peer_versions(python: str) -> str:
    code = ("from importlib.metadata import version as v; import platform; "
            "print(f\"HolisticTraceAnalysis {v('HolisticTraceAnalysis')} on Python {platform.python_version()}, "
            "pandas {v('pandas')}\")")
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
