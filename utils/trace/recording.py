"""Record what a function does: with torch.profiler on CUDA, or on the simulated device that is active."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .errors import TraceWarning
from .trace import Trace

Recorder = Callable[[Callable[[], Any]], Trace]
_recorder: Recorder | None = None

NO_DEVICE = ("there is nothing to record on: no CUDA device that torch can use, and no simulated one is active; "
             "start one with `from utils import start; start(simulate=True)`")


def register_recorder(recorder: Recorder | None) -> Recorder | None:
    """Make ``recorder(call) -> Trace`` what ``record`` uses, or None for torch.profiler; return the one before.

    A recorder runs ``call()`` once, with everything pending finished before and after, and returns the trace of that.
    """
    global _recorder
    before, _recorder = _recorder, recorder
    return before


def record(fn: Callable[..., Any], *args: Any, warmup: int = 1, memory: bool = False, **kwargs: Any) -> Trace:
    """Run ``fn(*args, **kwargs)`` on the active device and return the trace of that run.

    It runs ``warmup`` times before, unrecorded, so that one-time costs stay out; give 0 when fn must run once.
    ``memory``: let the profiler record each allocation and free as well, for ``trace.memory``; that makes the host
    slower, so give it for a picture of memory, not for times. The simulated device always has it, at no cost.
    Raises RuntimeError where there is neither CUDA nor a simulated device, and ValueError for a negative warmup.
    """
    if warmup < 0:
        raise ValueError(f"warmup is {warmup}: give 0 or more unrecorded runs")
    recorder = _recorder or _torch_recorder(memory)
    for _ in range(warmup):
        fn(*args, **kwargs)
    trace = recorder(lambda: fn(*args, **kwargs))
    trace.name = trace.name or getattr(fn, "__name__", "")
    return trace


def _torch_recorder(memory: bool) -> Recorder:
    try:
        import torch
    except ImportError:
        raise RuntimeError(NO_DEVICE) from None
    if not torch.cuda.is_available():
        raise RuntimeError(NO_DEVICE)
    return partial(_record_cuda, memory=memory)


def _record_cuda(call: Callable[[], Any], *, memory: bool) -> Trace:
    """One profiled run between two synchronisations."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with profile(activities=activities, acc_events=True):   # a process's first profile pays for starting the profiler
        torch.cuda.synchronize()
    asked: dict[str, bool] = {"profile_memory": True} if memory else {}
    with profile(activities=activities, acc_events=True, **asked) as profiler:
        call()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = Trace.load(path, progress=False)
    trace.name = ""
    if not trace.devices:
        warnings.warn("the profiler saw no work on the device: another profiler is running, or this user may not use "
                      "the GPU's counters (CUPTI)", TraceWarning, stacklevel=3)
    if memory and not trace.has_memory:
        warnings.warn("the profiler saw no allocation and no free on the device during this run, so the trace has no "
                      "record of memory", TraceWarning, stacklevel=3)
    return trace
