"""Functions that make tensors: on the device, pinned, or as they always did."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._device as default_device

from . import copies, sessions
from .geometry import of
from .ops import Unsupported
from .tensor import SimTensor, count_change


def wants_cuda(kwargs: dict) -> bool:
    device = kwargs.get("device")
    if device is None:
        device = default_device.CURRENT_DEVICE
    if device is None:
        return False
    wanted = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if wanted.type == "cuda":
        sessions.check_index(wanted)
    return wanted.type == "cuda"


def factory(func: Any, args: tuple, kwargs: dict) -> Any:
    device, name = sessions.active(), func.__name__
    if name == "normal" and any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values())):
        return func(*args, **kwargs)
    like = next((a for a in args[:1] if isinstance(a, torch.Tensor)), None) if _takes_like(name) else None
    args, kwargs = _without_scalars(args, kwargs, like)
    if kwargs.get("out") is not None:
        return _into(device, func, args, kwargs)
    on_device = wants_cuda(kwargs) if like is None or kwargs.get("device") is not None else isinstance(like, SimTensor)
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
    if name.startswith("empty") or name.startswith("new_empty"):
        made = device.empty(g)
    else:
        made = device.factory(name, g, _call_later(device, func, args, rest, kwargs.get("generator")))
    return made.requires_grad_(True) if kwargs.get("requires_grad") else made


def _takes_like(name: str) -> bool:
    return name.endswith("_like") or name.startswith("new_")


def _without_scalars(args: tuple, kwargs: dict, like: Any) -> tuple[tuple, dict]:
    """Sizes, bounds and fill values that are on the device are read, which waits for it."""

    def read(value: Any) -> Any:
        if isinstance(value, SimTensor):
            return value.item()
        return type(value)(map(read, value)) if type(value) in (list, tuple) else value

    args = tuple(a if a is like else read(a) for a in args)
    return args, {key: value if key in ("out", "input") else read(value) for key, value in kwargs.items()}


def _into(device: Any, func: Any, args: tuple, kwargs: dict) -> torch.Tensor:
    """A factory with out=: the device's kernel writes there, or the host does."""
    out = kwargs["out"]
    rest = {k: v for k, v in kwargs.items() if k not in ("out", "device", "generator", "requires_grad", "pin_memory")}
    if not isinstance(out, SimTensor):
        if device.host.space_of(out) is not None:
            device.host.access(out, True, f"host {func.__name__}")
        return func(*args, **kwargs)
    if rest.get("dtype", out.dtype) is not out.dtype:
        raise RuntimeError(f"dtype {rest['dtype']} does not match dtype of out parameter ({out.dtype})")
    rest["dtype"] = out.dtype
    with torch._C.DisableTorchFunction():
        shape = tuple(func(*args, device="meta", **rest).shape)
    if shape != out.geometry.shape:
        raise Unsupported(
            f"{func.__name__} with out= of shape {out.geometry.shape} where {shape} is needed; "
            "the simulated device does not resize: pass a tensor of the right shape"
        )
    if not func.__name__.startswith("empty"):
        device.fill_with(func.__name__, out, _call_later(device, func, args, rest, kwargs.get("generator")))
        count_change(out, func.__name__)
    return out


def _on_cpu(func: Any, args: tuple, kwargs: dict, like: Any) -> Any:
    if isinstance(like, SimTensor):  # empty_like(x, device="cpu") and its relatives
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


def from_data(func: Any, args: tuple, kwargs: dict) -> Any:
    """torch.tensor and torch.as_tensor: built on the CPU, then copied."""
    data = args[0] if args else kwargs.get("data")
    to_cuda = (
        wants_cuda(kwargs)
        if kwargs.get("device") is not None or not isinstance(data, torch.Tensor)
        else isinstance(data, SimTensor)
    )
    pin, grad = kwargs.get("pin_memory", False), kwargs.get("requires_grad", False)
    rest = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory", "requires_grad")}
    if type(data) in (list, tuple):
        data = copies.off_device(data)
        args, kwargs = (data, *args[1:]), {k: v for k, v in kwargs.items() if k != "data"}
        rest.pop("data", None)
    if isinstance(data, SimTensor):
        copied = func.__name__ == "tensor"          # torch.tensor itself may be patched
        made = copies.converted(data, "cuda" if to_cuda else "cpu", rest.get("dtype"), False, copy=copied)
    elif not to_cuda:
        made = func(*args, **rest, **({"device": kwargs["device"]} if "device" in kwargs else {}))
        made = sessions.active().host.pin(made) if pin else made
    else:
        made = copies.converted(func(*args, device="cpu", **rest), "cuda", None, False)
    return made.requires_grad_(True) if grad else made


def as_array(func: Any, args: tuple, kwargs: dict) -> Any:
    """torch.asarray: as torch.as_tensor where the device is meant, with a copy where one is asked for."""
    data = args[0] if args else kwargs["obj"]
    if not isinstance(data, SimTensor) and not wants_cuda(kwargs):
        return func(*args, **kwargs)
    rest = {k: v for k, v in kwargs.items() if k not in ("obj", "copy")}
    return from_data(torch.tensor if kwargs.get("copy") else torch.as_tensor, (data,), rest)
