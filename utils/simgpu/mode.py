"""What torch functions do while a simulated device is active: factories on "cuda", moves from the CPU, pinned memory."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.utils._device as default_device
from torch.overrides import TorchFunctionMode

from . import copies, sessions
from .dispatch import dispatch, set_mode
from .geometry import of
from .lock import LOCK
from .methods import parse_to, swap_data
from .tensor import SimTensor

aten = torch.ops.aten
READS_NOTHING = frozenset({
    "__get__", "size", "stride", "dim", "numel", "data_ptr", "storage_offset", "is_contiguous", "untyped_storage", "element_size",
    "is_pinned", "view", "view_as", "t", "transpose", "permute", "numpy", "detach", "unsqueeze", "squeeze", "narrow", "split", "chunk",
    "unbind", "expand", "expand_as", "as_strided", "select", "__len__", "ndimension", "nelement", "requires_grad_", "type",
    "is_floating_point", "is_complex", "get_device", "empty_like", "__hash__", "register_hook", "_is_view", "is_shared", "swapaxes",
    "is_same_size", "record_stream", "__set__", "__array__", "movedim", "unfold", "diagonal", "unflatten", "is_tensor", "storage", "typed_storage",
})
MAY_VIEW = frozenset({"__getitem__", "reshape", "flatten", "contiguous", "to", "float", "half", "bfloat16", "double", "int", "long",
                      "cpu", "ravel", "reshape_as", "__iter__", "tensor_split", "view_as_real", "T", "mT", "pin_memory", "as_tensor"})
IN_PLACE = frozenset({"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__iand__", "__ior__",
                      "__ixor__", "__imod__", "__ipow__"})


class DeviceMode(TorchFunctionMode):
    """Sends what is meant for the simulated device there; everything else passes."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        handler = HANDLERS.get(func)
        if handler is not None:
            with LOCK:
                return handler(func, args, kwargs or {})
        device = sessions.active()
        if device is not None and device.host.spaces:
            return _host_call(device, func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)


# what the host does to pinned memory

def _host_call(device: Any, func: Any, args: tuple, kwargs: dict) -> Any:
    """Run a function on CPU tensors, telling the device which pinned ones it reads and writes."""
    name = getattr(func, "__name__", "")
    if name in READS_NOTHING:
        return func(*args, **kwargs)
    pinned, on_device = _pinned(device, (*args, *kwargs.values()))
    if not pinned or on_device:
        return func(*args, **kwargs)
    if name in MAY_VIEW:
        result = func(*args, **kwargs)
        if _shares(result, pinned[0]):
            return result
    written = _written(name, args, kwargs)
    for tensor in pinned:
        if not any(tensor is w for w in written):
            device.host.access(tensor, False, f"host {name.strip('_')}")
    for tensor in written:
        device.host.access(_target(name, tensor, args), True, f"host {name.strip('_')}")
    return func(*args, **kwargs)


def _pinned(device: Any, values: Any) -> tuple[list[torch.Tensor], bool]:
    found, on_device = [], False
    for value in values:
        if isinstance(value, SimTensor):
            on_device = True
        elif isinstance(value, torch.Tensor):
            if device.host.space_of(value) is not None:
                found.append(value)
        elif isinstance(value, (list, tuple)):
            inside, there = _pinned(device, value)
            found += inside
            on_device |= there
    return found, on_device


def _written(name: str, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    written = [kwargs["out"]] if isinstance(kwargs.get("out"), torch.Tensor) else []
    if args and isinstance(args[0], torch.Tensor) and (name in IN_PLACE or (name.endswith("_") and not name.endswith("__"))):
        written.append(args[0])
    return written


def _target(name: str, tensor: torch.Tensor, args: tuple) -> torch.Tensor:
    """The part of a tensor that ``tensor[index] = …`` writes."""
    if name == "__setitem__":
        part = tensor[args[1]]
        if _shares(part, tensor):
            return part
    return tensor


def _shares(result: Any, tensor: torch.Tensor) -> bool:
    if isinstance(result, (list, tuple)):
        return bool(result) and _shares(result[0], tensor)
    return (isinstance(result, torch.Tensor) and result.device.type == "cpu" and not isinstance(result, SimTensor)
            and result.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr())


# factories

def _wants_cuda(kwargs: dict) -> bool:
    device = kwargs.get("device")
    if device is None:
        device = default_device.CURRENT_DEVICE
    if device is None:
        return False
    if isinstance(device, int):
        wanted = torch.device("cuda", device)
    else:
        wanted = torch.device(device)
    if wanted.type == "cuda":
        sessions.check_index(wanted)
    return wanted.type == "cuda"


def _factory(func: Any, args: tuple, kwargs: dict) -> Any:
    device = sessions.active()
    like = next((a for a in args[:1] if isinstance(a, torch.Tensor)), None)
    on_device = _wants_cuda(kwargs) if like is None or kwargs.get("device") is not None else isinstance(like, SimTensor)
    if kwargs.get("pin_memory"):
        if on_device:
            raise RuntimeError("Only dense CPU tensors can be pinned")
        return _pinned_factory(device, func, args, {k: v for k, v in kwargs.items() if k != "pin_memory"})
    if not on_device:
        return _on_cpu(func, args, kwargs, like)
    rest = {k: v for k, v in kwargs.items() if k not in ("device", "requires_grad", "pin_memory", "generator")}
    if isinstance(like, SimTensor):
        return func(*args, **{k: v for k, v in kwargs.items() if k != "device"})
    with torch._C.DisableTorchFunction():
        g = of(func(*args, device="meta", **rest))
    name = func.__name__
    if name.startswith("empty") or name.startswith("new_empty"):
        made = device.empty(g)
    else:
        made = device.factory(name, g, _call_later(device, func, args, rest, kwargs.get("generator")))
    return made.requires_grad_(True) if kwargs.get("requires_grad") else made


def _on_cpu(func: Any, args: tuple, kwargs: dict, like: Any) -> Any:
    if isinstance(like, SimTensor):         # empty_like(x, device="cpu") and its relatives
        with torch._C.DisableTorchFunction():
            like = torch.empty_strided(like.geometry.shape, like.geometry.stride, dtype=like.dtype)
            return func(like, *args[1:], **kwargs)
    return func(*args, **kwargs)


def _call_later(device: Any, func: Any, args: tuple, kwargs: dict, generator: torch.Generator | None) -> Any:
    def call() -> torch.Tensor:
        return func(*args, device="cpu", **kwargs)
    if "rand" not in func.__name__ and func.__name__ != "normal":
        return call
    return device.drawn_from(generator, call)


def _pinned_factory(device: Any, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    grad = kwargs.pop("requires_grad", False)
    with torch._C.DisableTorchFunction():
        if func.__name__.startswith("empty"):
            meta = func(*args, **{**kwargs, "device": "meta"})
            made = device.host.empty(meta.shape, meta.dtype)
        else:
            made = device.host.pin(func(*args, **kwargs))
    return made.requires_grad_(True) if grad else made


def _from_data(func: Any, args: tuple, kwargs: dict) -> Any:
    """torch.tensor and torch.as_tensor: built on the CPU, then copied."""
    data = args[0] if args else kwargs.get("data")
    to_cuda = _wants_cuda(kwargs) if kwargs.get("device") is not None or not isinstance(data, torch.Tensor) else isinstance(data, SimTensor)
    pin, grad = kwargs.get("pin_memory", False), kwargs.get("requires_grad", False)
    rest = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "requires_grad")}
    if isinstance(data, SimTensor):
        made = copies.converted(data, "cuda" if to_cuda else "cpu", rest.get("dtype"), False, copy=func is torch.tensor)
    elif not to_cuda:
        made = func(*args, **rest, **({"device": kwargs["device"]} if "device" in kwargs else {}))
        made = sessions.active().host.pin(made) if pin else made
    else:
        made = copies.converted(func(*args, device="cpu", **rest), "cuda", None, False)
    return made.requires_grad_(True) if grad else made


# moves

def _tensor_to(func: Any, args: tuple, kwargs: dict) -> Any:
    tensor = args[0]
    if isinstance(tensor, SimTensor):
        return tensor.to(*args[1:], **kwargs)
    try:
        device, dtype, non_blocking, copy, memory_format = parse_to(args[1:], kwargs)
    except (RuntimeError, TypeError):
        return func(*args, **kwargs)
    if device is None or device.type != "cuda":
        active = sessions.active()
        return _host_call(active, func, args, kwargs) if active.host.spaces else func(*args, **kwargs)
    sessions.check_index(device)
    return copies.converted(tensor, device, dtype, non_blocking, memory_format, copy=copy)


def _tensor_cuda(func: Any, args: tuple, kwargs: dict) -> Any:
    return _cuda_of(*args, **kwargs)


def _cuda_of(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    sessions.check_index(device)
    return tensor if isinstance(tensor, SimTensor) else copies.converted(tensor, "cuda", None, non_blocking, memory_format)


def _pin_memory(func: Any, args: tuple, kwargs: dict) -> Any:
    return args[0].pin_memory() if isinstance(args[0], SimTensor) else sessions.active().host.pin(args[0])


def _is_pinned(func: Any, args: tuple, kwargs: dict) -> bool:
    return sessions.active().host.space_of(args[0]) is not None


# operators that PyTorch takes apart before the device sees them

def _whole(overload: Any) -> Any:
    def handle(func: Any, args: tuple, kwargs: dict) -> Any:
        if any(isinstance(a, SimTensor) for a in (*args, *kwargs.values())):
            return dispatch(overload, args, kwargs)
        return func(*args, **kwargs)
    return handle


def _set_data(func: Any, args: tuple, kwargs: dict) -> None:
    tensor, value = args
    if isinstance(value, SimTensor) and not isinstance(tensor, SimTensor):
        return swap_data(tensor, value)
    return func(*args)


def _shallow(func: Any, args: tuple, kwargs: dict) -> bool:
    return False if any(isinstance(a, SimTensor) for a in args) else func(*args)


_FACTORIES = ("empty", "zeros", "ones", "full", "rand", "randn", "randint", "arange", "linspace", "logspace", "eye", "randperm",
              "empty_strided", "scalar_tensor", "tril_indices", "triu_indices", "range", "normal", "empty_like", "zeros_like",
              "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "hann_window", "empty_permuted")


def _direct(name: str) -> Any:
    """A factory for code that torch runs with modes off, as inside its own Python functions."""
    original = getattr(torch, name)

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None and sessions.active() is not None and _wants_cuda(kwargs):
            with LOCK:
                return HANDLERS[original](original, args, kwargs)
        return original(*args, **kwargs)
    return make


_NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided")
HANDLERS: dict[Any, Any] = {getattr(torch, name): _factory for name in _FACTORIES}
HANDLERS |= {getattr(torch.Tensor, name): _factory for name in _NEW}
HANDLERS |= {
    torch.tensor: _from_data, torch.as_tensor: _from_data, torch.Tensor.to: _tensor_to, torch.Tensor.cuda: _tensor_cuda,
    torch.Tensor.pin_memory: _pin_memory, torch.Tensor.is_pinned: _is_pinned, torch.Tensor.data.__set__: _set_data,
    torch.nn.functional.scaled_dot_product_attention: _whole(aten.scaled_dot_product_attention.default),
    torch.nn.functional.one_hot: _whole(aten.one_hot.default), torch.nn.functional.linear: _whole(aten.linear.default), torch.rms_norm: _whole(aten.rms_norm.default), torch._has_compatible_shallow_copy_type: _shallow,
}
FACTORIES = {name: _direct(name) for name in (*_FACTORIES, "tensor", "as_tensor")}
set_mode(DeviceMode)
