"""Puts the simulated device in the place of torch.cuda, and takes it away again."""

from __future__ import annotations

import functools
import threading
import types
from typing import Any

import torch
import torch.autograd.profiler as profiler
import torch.cuda
import torch.utils._device as default_device

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
        (module, unsupported | CUDA_FUNCTIONS),
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


def _refusal(name: str, original: Any) -> Any:
    @functools.wraps(original)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unsupported(
            f"torch.cuda.{name} is not modelled by the simulated device; leave it out, or run it on a CUDA machine"
        )

    return refuse
