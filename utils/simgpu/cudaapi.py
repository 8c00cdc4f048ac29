"""The functions of torch.cuda that are not about streams: device, memory, ranges, random numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import cudagraph, sessions, streams
from .lock import locked
from .mode import DeviceMode
from .ops import Unsupported


class DeviceProperties:
    """What torch.cuda.get_device_properties returns."""

    def __init__(self, profile: Any):
        self.name = f"Simulated {profile.name}"
        self.major, self.minor = profile.capability
        self.total_memory = profile.memory_bytes
        self.multi_processor_count = profile.sm_count
        self.is_integrated = self.is_multi_gpu_board = False
        self.warp_size = 32
        self.gcnArchName = self.name

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // (1 << 20)}MB, multi_processor_count={self.multi_processor_count})"
        )


def _memory() -> Any:
    return sessions.require("torch.cuda memory").machine.memory


def get_device_properties(device: Any = None) -> DeviceProperties:
    sessions.check_index(device)
    return DeviceProperties(sessions.require("torch.cuda.get_device_properties").profile)


@locked
def empty_cache() -> None:
    """Gives unused segments back; waits for the device when there is something to give."""
    device = sessions.require("torch.cuda.empty_cache")
    memory = device.machine.memory
    if device.graphs is None and memory.has_unused():
        device.machine.synchronize_all("empty cache")
        memory._release_held()
        memory.empty_cache(memory.pools_in_use())


def _stat(name: str) -> Callable[..., int]:
    def read(device: Any = None) -> int:
        sessions.check_index(device)
        return getattr(_memory().stats, name)

    return read


def reset_peak_memory_stats(device: Any = None) -> None:
    sessions.check_index(device)
    _memory().stats.reset_peaks()


def memory_stats(device: Any = None) -> dict[str, int]:
    sessions.check_index(device)
    s = _memory().stats
    return {
        "allocated_bytes.all.current": s.allocated,
        "allocated_bytes.all.peak": s.allocated_peak,
        "reserved_bytes.all.current": s.reserved,
        "reserved_bytes.all.peak": s.reserved_peak,
        "active_bytes.all.current": s.active,
        "active_bytes.all.peak": s.active_peak,
        "requested_bytes.all.current": s.requested,
        "requested_bytes.all.peak": s.requested_peak,
        "allocation.all.allocated": s.allocations,
        "allocation.all.current": s.live,
        "num_alloc_retries": s.retries,
        "num_ooms": s.ooms,
    }


def mem_get_info(device: Any = None) -> tuple[int, int]:
    sessions.check_index(device)
    memory = _memory()
    return max(0, memory.limit - memory.stats.reserved), memory.limit


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    sessions.check_index(device)
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    memory = _memory()
    memory.limit = int(memory.profile.memory_bytes * fraction)


def manual_seed(seed: int) -> None:
    device = sessions.active()
    if device is not None:
        device.seed, device.draws = int(seed), 0


def _sleep(cycles: int) -> None:
    """A kernel of one thread that waits for that many clock cycles (at 1 GHz here: as many ns)."""
    device = sessions.require("torch.cuda._sleep")
    device.machine.launch(device.queue, "_sleep", "kernel", "compute", max(1, int(cycles)), share=1)


class _Device:
    """``with torch.cuda.device(0):`` changes nothing: there is one device."""

    def __init__(self, device: Any):
        sessions.check_index(device)
        self.idx = 0

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: Any) -> bool:
        return False


def _name(device: Any = None) -> str:
    return get_device_properties(device).name


def _set_device(device: Any) -> None:
    sessions.check_index(device)


_TorchGenerator = torch.Generator


class _GeneratorType(type):
    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, _TorchGenerator)


class Generator(metaclass=_GeneratorType):
    """torch.Generator; one for "cuda" is a CPU generator that seeds the device's kernels at their call."""

    def __new__(cls, device: Any = "cpu") -> Any:
        device = torch.device(device)
        return _TorchGenerator("cpu" if device.type == "cuda" else device)


# ranges


def _push_range(name: str) -> None:
    device = sessions.active()
    if device is not None:
        device.machine.open_layer(name)


def _pop_range() -> None:
    device = sessions.active()
    if device is not None:
        device.machine.close_layer()


def enter_range(self: Any) -> Any:
    _push_range(self.name)
    return self


def exit_range(self: Any, *error: Any) -> None:
    _pop_range()


def _range_push(message: str) -> int:
    _push_range(message)
    return len(sessions.require("torch.cuda.nvtx").machine.layers) - 1


def _range_pop() -> int:
    _pop_range()
    return len(sessions.require("torch.cuda.nvtx").machine.layers)


@contextmanager
def _range(message: str, *args: Any, **kwargs: Any) -> Iterator[None]:
    _push_range(message.format(*args, **kwargs))
    try:
        yield
    finally:
        _pop_range()


_autocast_enter = torch.amp.autocast_mode.autocast.__enter__


def enter_autocast(self: Any) -> Any:
    if sessions.active() is not None and self.device == "cuda" and self._enabled:
        raise Unsupported(
            'torch.autocast("cuda") is not modelled by the simulated device; convert the model: '
            "module.to(torch.bfloat16)"
        )
    return _autocast_enter(self)


_thread_run = threading.Thread.run


def run_thread(self: threading.Thread) -> None:
    """Function modes belong to one thread: a thread started during a session gets its own."""
    if sessions.active() is None:
        return _thread_run(self)
    with DeviceMode():
        return _thread_run(self)


CUDA_FUNCTIONS: dict[str, Any] = {
    "Stream": streams.Stream,
    "Event": streams.Event,
    "ExternalStream": streams.ExternalStream,
    "stream": streams.stream,
    "StreamContext": streams.StreamContext,
    "current_stream": streams.current_stream,
    "default_stream": streams.default_stream,
    "set_stream": streams.set_stream,
    "synchronize": streams.synchronize,
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "init": lambda: None,
    "_lazy_init": lambda: None,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "set_device": _set_device,
    "device": _Device,
    "device_of": lambda tensor: _Device(None),
    "get_device_name": _name,
    "get_device_properties": get_device_properties,
    "get_device_capability": lambda device=None: sessions.require("torch.cuda").profile.capability,
    "is_bf16_supported": lambda including_emulation=True: (
        including_emulation or sessions.require("torch.cuda").profile.capability >= (8, 0)
    ),
    "empty_cache": empty_cache,
    "memory_allocated": _stat("allocated"),
    "max_memory_allocated": _stat("allocated_peak"),
    "memory_reserved": _stat("reserved"),
    "max_memory_reserved": _stat("reserved_peak"),
    "memory_cached": _stat("reserved"),
    "max_memory_cached": _stat("reserved_peak"),
    "reset_peak_memory_stats": reset_peak_memory_stats,
    "reset_max_memory_allocated": reset_peak_memory_stats,
    "reset_max_memory_cached": reset_peak_memory_stats,
    "memory_stats": memory_stats,
    "mem_get_info": mem_get_info,
    "set_per_process_memory_fraction": set_per_process_memory_fraction,
    "ipc_collect": lambda: None,
    "manual_seed": manual_seed,
    "manual_seed_all": manual_seed,
    "initial_seed": lambda: sessions.require("torch.cuda").seed,
    "_is_in_bad_fork": lambda: False,
    "_sleep": _sleep,
    "CUDAGraph": cudagraph.CUDAGraph,
    "graph": cudagraph.graph,
    "graph_pool_handle": cudagraph.graph_pool_handle,
    "is_current_stream_capturing": cudagraph.is_current_stream_capturing,
    "OutOfMemoryError": torch.OutOfMemoryError,
}

SEEDS = {"manual_seed": manual_seed, "manual_seed_all": manual_seed}
RANGES = {"range_push": _range_push, "range_pop": _range_pop, "range": _range, "mark": lambda message: None}
