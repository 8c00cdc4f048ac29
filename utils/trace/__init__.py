"""Profiler traces as columns: load, record, measure and save what a device did and when.

A trace is a set of spans, each with a kind and a lane::

    lane      kinds                   what runs there
    host      host                    operators and CUDA calls on CPU threads
    h2d       h2d                     copies into the device
    compute   kernel, d2d, memset     kernels, copies within the device, fills
    d2h       d2h                     copies out of the device
    sync      sync                    waits as the profiler reports them, never work

A trace can carry a record of device memory over time: ``trace.memory``, ``trace.peak_bytes()``.
``Trace.load`` reads torch.profiler's files (Kineto JSON, plain or gzip), ``record`` makes a trace here and now.
"""

from .errors import TraceError, TraceWarning
from .memory import Memory
from .recording import record, register_recorder
from .spans import KINDS, LANES
from .trace import Trace

__all__ = ["KINDS", "LANES", "Memory", "Trace", "TraceError", "TraceWarning", "record", "register_recorder"]
