"""Puts the simulated device in the place of torch.cuda, and takes it away again."""

from __future__ import annotations

import concurrent.futures.thread as futures
import functools
import threading
import types
from typing import Any

import torch
import torch.autograd.profiler as profiler
import torch.cuda
import torch.utils._device as default_device
from torch.overrides import _get_current_function_mode_stack

from . import cudagraph, streams
from .cudaapi import CUDA_FUNCTIONS, RANGES, SEEDS, Generator, enter_autocast, enter_range, exit_range, run_thread
from .hostcalls import storage_methods, tensor_methods
from .methods import GRADIENTS, refuse_gradients
from .mode import FACTORIES, DeviceMode
from .ops import Unsupported

_saved: list[tuple[Any, str, Any]] = []
_mode: list[DeviceMode] = []
_MISSING = object()


def apply() -> None:
    """Patch torch; all or nothing."""
    default_device._device_constructors()  # remembers torch's own factories, before they are wrapped
    try:
        for where, names in _replacements():
            for name, value in names.items():
                _saved.append((where, name, vars(where).get(name, _MISSING)))
                setattr(where, name, value)
        _mode.append(DeviceMode())
        _mode[0].__enter__()
    except BaseException:
        restore()
        raise


def restore() -> None:
    """Undo ``apply``."""
    while _mode:
        _mode.pop().__exit__(None, None, None)
    while _saved:
        where, name, value = _saved.pop()
        if value is _MISSING:
            delattr(where, name)
        else:
            setattr(where, name, value)


def _replacements() -> list[tuple[Any, dict[str, Any]]]:
    module = torch.cuda
    unsupported = {
        name: _refusal(name, getattr(module, name))
        for name in module.__all__
        if name not in CUDA_FUNCTIONS and _needs_device(getattr(module, name, None))
    }
    return [
        (module, unsupported | CUDA_FUNCTIONS | {"_lazy_init": _lazy_init}),
        (module.memory, {name: value for name, value in CUDA_FUNCTIONS.items() if hasattr(module.memory, name)}),
        (module.streams, {"Stream": streams.Stream, "Event": streams.Event}),
        (
            module.graphs,
            {
                "CUDAGraph": cudagraph.CUDAGraph,
                "graph": cudagraph.graph,
                "graph_pool_handle": cudagraph.graph_pool_handle,
                "is_current_stream_capturing": cudagraph.is_current_stream_capturing,
            },
        ),
        (module.random, SEEDS),
        (
            module.nvtx,
            RANGES,
        ),
        (profiler.record_function, {"__enter__": enter_range, "__exit__": exit_range}),
        (threading.Thread, {"run": run_thread}),
        (futures._WorkItem, {"run": _run_item}),
        (torch, {"Event": _Event, "Stream": _Stream}),
        (torch.accelerator, _accelerator()),
        (torch.UntypedStorage, storage_methods()),
        (torch.Tensor, tensor_methods()),
        (torch, {**FACTORIES, "Generator": Generator}),
        (torch.autograd, {name: refuse_gradients(name, getattr(torch.autograd, name)) for name in GRADIENTS}),
        (torch.amp.autocast_mode.autocast, {"__enter__": enter_autocast}),
    ]


def _needs_device(value: Any) -> bool:
    return (
        isinstance(value, (types.FunctionType, type))
        and getattr(value, "__module__", "").startswith("torch.cuda")
        and not (isinstance(value, type) and issubclass(value, BaseException))
    )


@functools.lru_cache(maxsize=1024)  # every session asks for all of them
def _refusal(name: str, original: Any, module: str = "cuda") -> Any:
    @functools.wraps(original)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported(
            f"torch.{module}.{name} is not modelled by the simulated device; leave it out, or run it on a CUDA machine"
        )

    return refuse


# threads that were there before the device


_run_plain = futures._WorkItem.run


def _in_mode() -> bool:
    return any(isinstance(mode, DeviceMode) for mode in _get_current_function_mode_stack())


def _run_item(self: Any, *args: Any) -> None:
    """A thread of a pool that started before the session gets the function mode with each piece of work."""
    if not _mode or _in_mode():
        return _run_plain(self, *args)
    with DeviceMode():
        return _run_plain(self, *args)


def _lazy_init() -> None:
    """Where torch goes when a call for the device passed the simulator by."""
    if not _in_mode():
        raise RuntimeError(
            "this thread started before the simulated device did and does not know it: start the thread inside "
            "simgpu.session(...) or after simgpu.install(...), or use a ThreadPoolExecutor"
        )


# names of torch that are not torch.cuda's own


class _Event(streams.Event):
    """torch.Event: as torch.cuda.Event, after the device."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False,
                 interprocess: bool = False):
        _need_cuda("torch.Event", device)
        super().__init__(enable_timing, blocking, interprocess)


class _Stream(streams.Stream):
    """torch.Stream: as torch.cuda.Stream."""

    def __init__(self, device: Any = None, *, priority: int = 0, **kwargs: Any):
        _need_cuda("torch.Stream", device)
        super().__init__(None, priority, **kwargs)


def _need_cuda(what: str, device: Any) -> None:
    if device is not None and not isinstance(device, int) and torch.device(device).type != "cuda":
        raise Unsupported(f"{what} on {device} is not modelled while a CUDA device is simulated")


def _accelerator() -> dict[str, Any]:
    """torch.accelerator: what torch.cuda has, the rest refused."""
    cuda = CUDA_FUNCTIONS
    known = {
        "current_stream": streams.current_stream,
        "set_stream": streams.set_stream,
        "synchronize": streams.synchronize,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": cuda["set_device"],
        "set_device_idx": cuda["set_device"],
        "device_index": cuda["device"],
    }
    for name in ("empty_cache", "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
                 "memory_stats", "reset_peak_memory_stats"):
        known[name] = cuda[name]
    names = [name for name in torch.accelerator.__all__ if callable(getattr(torch.accelerator, name, None))]
    return {name: known.get(name) or _refusal(name, getattr(torch.accelerator, name), "accelerator") for name in names}
