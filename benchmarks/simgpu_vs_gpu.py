"""The same small programs on a CUDA device and on the simulated one: what blocks, what is ordered, what comes out, what raises.

    python benchmarks/simgpu_vs_gpu.py --device cuda > cuda.json
    python benchmarks/simgpu_vs_gpu.py --device sim > sim.json
    python benchmarks/simgpu_vs_gpu.py --compare cuda.json sim.json     exit status 1 when they differ

Every observation is a yes or no, a value, or the name of an error: nothing depends on how fast the machine is. Work that
keeps the device busy is torch.cuda._sleep for BUSY_MS; a call "waits" when the host is held for more than half of that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch  # noqa: E402

from utils import simgpu  # noqa: E402

BUSY_MS = 30.0
SMALL, LARGE = 256, 8 << 20            # floats: 1 KiB, 32 MiB
PROGRAMS: dict[str, Callable[[], Any]] = {}
_cycles_per_ms = 1e6


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[function.__name__] = function
    return function


# measuring

def calibrate() -> None:
    """Clock cycles of torch.cuda._sleep per millisecond."""
    global _cycles_per_ms
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        start.record()
        torch.cuda._sleep(20_000_000)
        end.record()
        end.synchronize()
    _cycles_per_ms = 20_000_000 / start.elapsed_time(end)


def busy(stream: Any = None) -> None:
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(BUSY_MS * _cycles_per_ms))


def host_ms(call: Callable[[], Any]) -> float:
    start = simgpu.clock()
    call()
    return (simgpu.clock() - start) / 1e3


def waits(call: Callable[[], Any], stream: Any = None) -> bool:
    """Whether ``call`` waits for work queued before it (on the current stream, or on ``stream``)."""
    call()                                              # whatever happens only the first time
    torch.cuda.synchronize()
    busy(stream)
    held = host_ms(call) > BUSY_MS / 2
    torch.cuda.synchronize()
    return held


def outcome(call: Callable[[], Any]) -> str:
    """The built-in family of the error that ``call`` raises, "ok" otherwise."""
    try:
        call()
    except (torch.OutOfMemoryError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        return type(error).__name__
    except RuntimeError:
        return "RuntimeError"
    return "ok"


def ones(count: int, **options: Any) -> torch.Tensor:
    return torch.ones(count, device="cuda", **options)


# copies

@program
def copies_wait_for_their_stream() -> dict[str, bool]:
    found = {}
    for size_name, size in (("small", SMALL), ("large", LARGE)):
        for pinned in (True, False):
            for non_blocking in (True, False):
                host = torch.ones(size).pin_memory() if pinned else torch.ones(size)
                device = ones(size)
                label = f"{size_name} {'pinned' if pinned else 'pageable'} non_blocking={non_blocking}"
                found[f"h2d {label}"] = waits(lambda d=device, h=host, n=non_blocking: d.copy_(h, non_blocking=n))
                found[f"d2h {label}"] = waits(lambda d=device, h=host, n=non_blocking: h.copy_(d, non_blocking=n))
    return found


@program
def converting_copies_wait() -> dict[str, bool]:
    side = 2048
    found = {}
    for name, make in {
        "other dtype": lambda: torch.ones(side, side, dtype=torch.float64).pin_memory(),
        "transposed": lambda: torch.ones(side, side).pin_memory().t(),
        "matching": lambda: torch.ones(side, side).pin_memory(),
    }.items():
        host, device = make(), torch.ones(side, side, device="cuda")
        found[f"h2d {name}"] = waits(lambda d=device, h=host: d.copy_(h, non_blocking=True))
        found[f"d2h {name}"] = waits(lambda d=device, h=host: h.copy_(d, non_blocking=True))
    strided = torch.ones(side, side, device="cuda").t()
    host = torch.ones(side, side).pin_memory()
    found["h2d into transposed"] = waits(lambda: strided.copy_(host, non_blocking=True))
    found["d2h from transposed"] = waits(lambda: host.copy_(strided, non_blocking=True))
    return found


@program
def copies_do_not_wait_for_other_streams() -> dict[str, bool]:
    side, host, device = torch.cuda.Stream(), torch.ones(SMALL), ones(SMALL)
    large, large_host = ones(LARGE), torch.ones(LARGE)
    return {
        "blocking h2d": waits(lambda: device.copy_(host), side), "blocking d2h": waits(lambda: host.copy_(device), side),
        "blocking large h2d": waits(lambda: large.copy_(large_host), side), "item": waits(lambda: device[0].item(), side),
        "to cuda": waits(lambda: host.to("cuda"), side), "cpu": waits(lambda: device.cpu(), side),
    }


@program
def moves_wait() -> dict[str, Any]:
    pinned, pageable, device = torch.ones(SMALL).pin_memory(), torch.ones(SMALL), ones(SMALL)
    return {
        "pinned.to non_blocking": waits(lambda: pinned.to("cuda", non_blocking=True)), "pinned.to": waits(lambda: pinned.to("cuda")),
        "pageable.cuda": waits(lambda: pageable.cuda()), "device.to cpu non_blocking": waits(lambda: device.to("cpu", non_blocking=True)),
        "device.cpu": waits(lambda: device.cpu()), "device.to dtype": waits(lambda: device.to(torch.bfloat16)),
        "tensor(list)": waits(lambda: torch.tensor([1, 2], device="cuda")), "as_tensor(list)": waits(lambda: torch.as_tensor([1.0], device="cuda")),
        "to cpu non_blocking is pinned": device.to("cpu", non_blocking=True).is_pinned(), "cpu is pinned": device.cpu().is_pinned(),
        "pin_memory is pinned": pinned.is_pinned(), "view of pinned is pinned": pinned[3:].is_pinned(),
    }


# what reads and factories do

@program
def reads_wait() -> dict[str, bool]:
    x, y, flags = ones(SMALL), ones(SMALL), torch.ones(SMALL, dtype=torch.bool, device="cuda")
    ids = torch.zeros(4, dtype=torch.int64, device="cuda")
    calls = {
        "item": lambda: x[0].item(), "tolist": x.tolist, "repr": lambda: repr(x), "bool": lambda: bool(x[0]), "equal": lambda: torch.equal(x, y), "equal to itself": lambda: torch.equal(x, x),
        "allclose": lambda: torch.allclose(x, x), "nonzero": flags.nonzero, "mask read": lambda: x[flags], "mask write": lambda: x.__setitem__(flags, 2.0),
        "masked_fill": lambda: x.masked_fill(flags, 2.0), "unique": x.unique, "index": lambda: x[ids], "list index": lambda: x[[0, 1]],
        "cpu index": lambda: x[torch.tensor([0, 1])], "set scalar": lambda: x.__setitem__(0, 5), "set empty index": lambda: x[0].__setitem__((), 5), "set slice": lambda: x.__setitem__(slice(0, 2), 5.0),
        "topk": lambda: x.topk(2), "sort": x.sort, "argmax": x.argmax, "where": lambda: torch.where(flags, x, x), "cat": lambda: torch.cat([x, x]),
        "multinomial": lambda: torch.multinomial(x, 2), "randn": lambda: torch.randn(4, device="cuda"), "arange": lambda: torch.arange(4, device="cuda"),
        "zeros": lambda: torch.zeros(4, device="cuda"), "matmul": lambda: x.view(16, 16) @ x.view(16, 16), "empty": lambda: torch.empty(4, device="cuda"),
        "embedding": lambda: torch.nn.functional.embedding(ids, x.view(16, 16)), "one_hot": lambda: torch.nn.functional.one_hot(ids, 4),
        "repeat_interleave": lambda: ids.repeat_interleave(ids + 1), "scalar tensor": lambda: x * torch.tensor(2.0),
        "index_copy": lambda: x.index_copy_(0, ids, ones(4)), "bincount": ids.bincount, "sdpa": lambda: torch.nn.functional.scaled_dot_product_attention(
            x.view(1, 16, 16), x.view(1, 16, 16), x.view(1, 16, 16)), "cuda synchronize": torch.cuda.synchronize, "empty_cache with nothing cached": torch.cuda.empty_cache,
        "memory_allocated": torch.cuda.memory_allocated, "pin_memory": lambda: torch.ones(4).pin_memory(),
    }
    return {name: waits(call) for name, call in calls.items()}


# events and streams

@program
def events() -> dict[str, Any]:
    fresh, other, timed = torch.cuda.Event(), torch.cuda.Event(), torch.cuda.Event(enable_timing=True)
    recorded = torch.cuda.Event(enable_timing=True)
    found = {"query of fresh": fresh.query(), "synchronize of fresh": outcome(fresh.synchronize), "wait on fresh": outcome(fresh.wait),
             "elapsed_time without timing": outcome(lambda: fresh.elapsed_time(other)), "elapsed_time unrecorded": outcome(lambda: timed.elapsed_time(recorded))}
    timed.record()
    busy()
    recorded.record()
    found["query while busy"] = recorded.query()
    found["elapsed_time while busy"] = outcome(lambda: timed.elapsed_time(recorded))
    found["synchronize waits"] = host_ms(recorded.synchronize) > BUSY_MS / 2
    found["query when done"] = recorded.query()
    found["elapsed_time"] = round(timed.elapsed_time(recorded) / BUSY_MS, 1)
    busy()
    found["earlier record is still what was waited for"] = recorded.query()
    recorded.record()
    found["after recording again"] = recorded.query()
    torch.cuda.synchronize()
    return found


@program
def a_wait_binds_at_the_call() -> dict[str, bool]:
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    torch.cuda.synchronize()
    event.record(side)
    torch.cuda.current_stream().wait_event(event)
    busy(side)
    event.record(side)
    early = host_ms(torch.cuda.current_stream().synchronize) > BUSY_MS / 2
    torch.cuda.current_stream().wait_event(event)
    late = host_ms(torch.cuda.current_stream().synchronize) > BUSY_MS / 2
    return {"waits for the second record": early, "wait after the second record": late}


@program
def streams() -> dict[str, Any]:
    made = [torch.cuda.Stream() for _ in range(33)]
    side = made[0]
    found = {"different of 33": len({s.cuda_stream for s in made}), "33rd equals 1st": made[32] == made[0],
             "priority 5": torch.cuda.Stream(priority=5).priority, "default priority": side.priority,
             "current is default": torch.cuda.current_stream() == torch.cuda.default_stream()}
    torch.cuda.synchronize()
    busy(side)
    found["query of busy stream"] = side.query()
    found["default stream is not held by a pool stream"] = host_ms(torch.cuda.default_stream().synchronize) < BUSY_MS / 2
    torch.cuda.synchronize()
    busy()
    found["pool stream is not held by the default stream"] = host_ms(side.synchronize) < BUSY_MS / 2
    torch.cuda.synchronize()
    return found


@program
def overlap() -> dict[str, bool]:
    """Whether two pieces of work take the time of one or of both."""
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    up, down = (torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    x, y = (torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(2))

    def together(one: Callable[[], Any], other: Callable[[], Any], same: bool) -> bool:
        times = []
        for second in (None, other):
            torch.cuda.synchronize()
            start = simgpu.clock()
            with torch.cuda.stream(a):
                one()
            if second is not None:
                with torch.cuda.stream(a if same else b):
                    second()
            torch.cuda.synchronize()
            times.append(simgpu.clock() - start)
        return times[1] < 1.8 * times[0]

    def upload():
        for _ in range(8):
            x.copy_(up, non_blocking=True)

    def download():
        for _ in range(8):
            down.copy_(y, non_blocking=True)
    for warm in (upload, download, busy):
        warm()
    return {
        "kernel beside kernel": together(busy, busy, False), "kernels of one stream": together(busy, busy, True),
        "h2d beside d2h": together(upload, download, False), "h2d beside h2d": together(upload, upload, False),
        "h2d beside kernel": together(busy, lambda: x.copy_(up, non_blocking=True), False),
    }


# results of programs with and without an edge; the sleep makes the wrong order certain

@program
def missing_edges_give_old_data() -> dict[str, Any]:
    side = torch.cuda.Stream()
    found = {}
    for edge in (False, True):
        slot, weight = torch.zeros(SMALL, device="cuda"), torch.ones(SMALL).pin_memory()
        torch.cuda.synchronize()
        busy(side)
        with torch.cuda.stream(side):
            slot.copy_(weight, non_blocking=True)
        if edge:
            torch.cuda.current_stream().wait_stream(side)
        found[f"read beside a copy, edge={edge}"] = (slot + 0)[0].item()
        torch.cuda.synchronize()
        out = torch.zeros(SMALL).pin_memory()
        busy()
        out.copy_(slot, non_blocking=True)
        if edge:
            torch.cuda.current_stream().synchronize()
        found[f"host read, edge={edge}"] = float(out.numpy()[0])
        torch.cuda.synchronize()
    return found


@program
def source_changed_after_the_call() -> dict[str, float]:
    found = {}
    for pinned in (True, False):
        source, target = torch.ones(SMALL), torch.zeros(SMALL, device="cuda")
        source = source.pin_memory() if pinned else source
        torch.cuda.synchronize()
        busy()
        target.copy_(source, non_blocking=True)
        source.numpy()[:] = 2
        found["pinned" if pinned else "pageable"] = target[0].item()
    return found


@program
def freed_blocks() -> dict[str, Any]:
    side, found = torch.cuda.Stream(), {}
    for share in (False, True):
        x = ones(1 << 20)
        torch.cuda.synchronize()
        busy(side)
        with torch.cuda.stream(side):
            y = x + 1
        if share:
            x.record_stream(side)
        address = x.data_ptr()
        del x
        z = torch.full((1 << 20,), 7.0, device="cuda")
        found[f"block reused, record_stream={share}"] = z.data_ptr() == address
        torch.cuda.synchronize()
        found[f"reader saw, record_stream={share}"] = y[0].item()
    return found


# memory

@program
def memory() -> dict[str, Any]:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    found: dict[str, Any] = {}
    for count in (1, 513, 1 << 20, (1 << 20) + 1, 9 << 20, 11 << 20):
        before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        x = torch.empty(count, dtype=torch.uint8, device="cuda")
        found[f"allocated by {count}"] = torch.cuda.memory_allocated() - before
        found[f"reserved by {count}"] = torch.cuda.memory_reserved() - reserved
        address = x.data_ptr()
        del x
        again = torch.empty(count, dtype=torch.uint8, device="cuda")
        found[f"reused after {count}"] = again.data_ptr() == address
        with torch.cuda.stream(torch.cuda.Stream()):
            found[f"other stream after {count}"] = torch.empty(count, dtype=torch.uint8, device="cuda").data_ptr() == address
        del again
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    side, x = torch.cuda.Stream(), torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with torch.cuda.stream(side):
        y = x @ x
    found["first GEMM of a stream allocates"] = torch.cuda.memory_allocated() - before - 64 * 64 * 4
    del x, y
    busy()
    found["empty_cache with something cached waits"] = host_ms(torch.cuda.empty_cache) > BUSY_MS / 2
    found["too much"] = outcome(lambda: torch.empty(1 << 50, dtype=torch.uint8, device="cuda"))
    return found


# CUDA graphs

def graph_error_calls() -> dict[str, Callable[[], Any]]:
    """What one may and may not do during a capture."""
    pinned, pageable = torch.ones(4).pin_memory(), torch.ones(4)
    x, outside, side = ones(4), torch.cuda.Event(), torch.cuda.Stream()
    outside.record()
    inside = torch.cuda.Event()

    def leave_unjoined() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add_(1)
    torch.cuda.synchronize()
    return {
        "kernel": lambda: x.add_(1), "pinned h2d": lambda: x.copy_(pinned, non_blocking=True),
        "pinned d2h": lambda: pinned.copy_(x, non_blocking=True), "pinned h2d blocking": lambda: x.copy_(pinned),
        "pageable h2d non_blocking": lambda: x.copy_(pageable, non_blocking=True), "pageable h2d": lambda: x.copy_(pageable),
        "pageable d2h non_blocking": lambda: pageable.copy_(x, non_blocking=True), "cpu": x.cpu, "item": lambda: x[0].item(),
        "device synchronize": torch.cuda.synchronize, "event record": lambda: inside.record(),
        "stream synchronize": lambda: torch.cuda.current_stream().synchronize(), "stream query": lambda: torch.cuda.current_stream().query(),
        "other stream synchronize": side.synchronize, "other stream query": side.query, "outside event synchronize": outside.synchronize,
        "outside event wait": lambda: outside.wait(), "outside event query": lambda: outside.query(), "unjoined": leave_unjoined,
        "fresh event wait": lambda: torch.cuda.Event().wait(), "allocation": lambda: torch.empty(4, device="cuda"), "nonzero": x.nonzero,
        "inside event synchronize": lambda: (inside.record(), inside.synchronize()), "set scalar": lambda: x.__setitem__(0, 5),
        "set slice": lambda: x.__setitem__(slice(0, 2), 5.0), "empty_cache": torch.cuda.empty_cache, "replay": lambda: torch.cuda.CUDAGraph().replay(),
    }


@program
def graph_errors() -> dict[str, str]:
    """On CUDA a failed capture spoils the process: each case has its own."""
    names = list(graph_error_calls())
    if simgpu.active() is not None:
        return {name: graph_error(name) for name in names}
    command = [sys.executable, __file__, "--device", "cuda", "--graph-error"]
    running = {name: subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) for name in names}
    return {name: (process.communicate()[0].strip().splitlines() or ["no answer"])[-1] for name, process in running.items()}


def graph_error(name: str) -> str:
    return outcome(lambda: _capture(graph_error_calls()[name]))


@program
def graph_misuse() -> dict[str, str]:
    return {"capture on the default stream": outcome(torch.cuda.CUDAGraph().capture_begin),
            "replay before capture": outcome(torch.cuda.CUDAGraph().replay), "pool before capture": outcome(torch.cuda.CUDAGraph().pool)}


def _capture(call: Callable[[], Any], **options: Any) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        call()
    return graph


@program
def graph_results() -> dict[str, Any]:
    x, out, kept = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda"), {}

    def body() -> None:
        kept["y"] = x + 1
        out.copy_(kept["y"] * 2)
    graph = _capture(body)
    torch.cuda.synchronize()
    found = {"capture executes": out[0].item()}
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        found[f"output for {value}"] = out[0].item()
        found[f"pool output for {value}"] = kept["y"][0].item()
    found["replay waits"] = waits(graph.replay)
    host = torch.ones(4).pin_memory()
    upload = _capture(lambda: x.copy_(host, non_blocking=True))
    host.fill_(3)
    upload.replay()
    found["host input is read at replay"] = x[0].item()
    return found


@program
def graph_pools() -> dict[str, int]:
    torch.cuda.synchronize()
    x = torch.zeros(4 << 20, dtype=torch.uint8, device="cuda")

    def body() -> None:
        y = x + 1
        del y
    torch.cuda.empty_cache()
    found, graphs = {}, []
    for name, options in (("first", {}), ("shared", None), ("own", {})):
        before = torch.cuda.memory_reserved()
        graphs.append(_capture(body, **({"pool": graphs[0].pool()} if options is None else options)))
        found[f"reserved by the {name} graph"] = torch.cuda.memory_reserved() - before
    return found


# errors

@program
def errors() -> dict[str, str]:
    x = ones(4)
    return {
        "numpy": outcome(x.numpy), "add cpu": outcome(lambda: x + torch.ones(4)), "add cpu scalar": outcome(lambda: x + torch.ones(())),
        "pin a device tensor": outcome(x.pin_memory), "cuda:7": outcome(lambda: torch.empty(1, device="cuda:7")), "item of many": outcome(x.item),
        "bad size": outcome(lambda: x + ones(3)), "bad index": outcome(lambda: x[9]), "bool of many": outcome(lambda: bool(x)),
        "copy of another shape": outcome(lambda: x.copy_(ones(3))), "view": outcome(lambda: x.view(3)), "mm dtypes": outcome(
            lambda: torch.mm(torch.ones(2, 2, device="cuda"), torch.ones(2, 2, device="cuda", dtype=torch.float16))),
        "pinned empty on cuda": outcome(lambda: torch.empty(2, device="cuda", pin_memory=True)),
        "inference tensor": outcome(lambda: torch.inference_mode()(lambda: ones(2) * 2)()),
    }


@program
def numbers() -> dict[str, Any]:
    """Integer results, so that they can be compared exactly."""
    x = torch.arange(24, device="cuda").reshape(4, 6)
    return {
        "strides": [list(t.stride()) for t in (x.t(), x[1:, ::2], x.t().contiguous(), x.t().float(), x.t() + 1, x.t().clone())],
        "sum": x.sum().item(), "gather": x.gather(1, x[:, :1] % 6).flatten().tolist(), "sort": (x * 7 % 5).sort(dim=-1, stable=True).values.tolist(),
        "topk": (x * 7 % 23).flatten().topk(3).indices.tolist(), "cumsum": x.cumsum(0)[-1].tolist(), "where": torch.where(x > 5, x, -x)[1].tolist(),
        "dtypes": [str(t.dtype) for t in (x / 2, x > 1, x.float() * 2, x.mean(dtype=torch.float32), x.argmax(), x.bfloat16() + 1, x.half() @ x.t().half())],
    }


# running and comparing

def run(names: list[str]) -> dict[str, Any]:
    calibrate()
    found: dict[str, Any] = {}
    for name in names or PROGRAMS:
        try:
            found[name] = PROGRAMS[name]()
            torch.cuda.synchronize()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return found


def compare(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """A line per observation that differs."""
    lines = []
    for name in {**one, **other}:
        a, b = one.get(name), other.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            lines += [f"{name}: {key}: {a.get(key)!r} | {b.get(key)!r}" for key in {**a, **b} if a.get(key) != b.get(key)]
        elif a != b:
            lines.append(f"{name}: {a!r} | {b!r}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "sim"), help="where to run")
    parser.add_argument("--compare", nargs=2, metavar="FILE", help="two results")
    parser.add_argument("--graph-error", help="run one case of graph_errors and print its outcome")
    parser.add_argument("programs", nargs="*", help="names of programs (default: all)")
    options = parser.parse_args()
    if options.compare:
        one, other = (json.loads(Path(name).read_text())["results"] for name in options.compare)
        lines = compare(one, other)
        print("\n".join(lines) or "no difference")
        sys.exit(bool(lines))
    if options.graph_error:
        print(graph_error(options.graph_error))
        return
    if options.device == "sim":
        with simgpu.session(simgpu.H200) as gpu:
            results, device = run(options.programs), f"simulated {gpu.profile.name}"
    else:
        results, device = run(options.programs), torch.cuda.get_device_name()
    print(json.dumps({"device": device, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"), "results": results}, indent=1))


if __name__ == "__main__":
    main()
