"""What torch functions do while a simulated device is active: factories, moves from the CPU, pinned memory."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import attention, copies, sessions
from .dispatch import dispatch, set_mode
from .factories import as_array, factory, from_data, wants_cuda
from .hostcalls import factory_call, host_call
from .lock import LOCK
from .methods import parse_to, swap_data
from .special import COMPOSITES_REFUSED, SPECIAL
from .tensor import SimTensor

aten = torch.ops.aten

class DeviceMode(TorchFunctionMode):
    """Sends what is meant for the simulated device there; everything else passes."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        rule = RULES.get(func)
        if rule is not None and _on_device(args, kwargs or {}):
            with LOCK:
                result = rule(func, args, kwargs or {})
            if result is not NotImplemented:
                return result
        handler = HANDLERS.get(func)
        if handler is not None:
            with LOCK:
                return handler(func, args, kwargs or {})
        device = sessions.active()
        if device is not None and device.host.spaces:
            return host_call(device, func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)


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
        return _on_host(func, args, kwargs)
    sessions.check_index(device)
    attention.refuse_bias(tensor)
    return copies.converted(tensor, device, dtype, non_blocking, memory_format, copy=copy)


def _tensor_cuda(func: Any, args: tuple, kwargs: dict) -> Any:
    return _cuda_of(*args, **kwargs)


def _cuda_of(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    sessions.check_index(device)
    attention.refuse_bias(tensor)
    return (
        tensor if isinstance(tensor, SimTensor) else copies.converted(tensor, "cuda", None, non_blocking, memory_format)
    )


def _pin_memory(func: Any, args: tuple, kwargs: dict) -> Any:
    return args[0].pin_memory() if isinstance(args[0], SimTensor) else sessions.active().host.pin(args[0])


def _is_pinned(func: Any, args: tuple, kwargs: dict) -> bool:
    return sessions.active().host.space_of(args[0]) is not None


# operators that PyTorch takes apart before the device sees them


def _whole(overload: Any, operands: int = 3) -> Any:
    """A handler for an operator of which autograd would keep the first so many arguments."""

    def handle(func: Any, args: tuple, kwargs: dict) -> Any:
        if any(isinstance(a, SimTensor) for a in (*args, *kwargs.values())):
            _refuse_keeping(func.__name__, [*args[:operands], *(v for w, v in kwargs.items() if w != "bias")])
            return dispatch(overload, args, kwargs)
        return _on_host(func, args, kwargs)

    return handle


def _refuse_keeping(name: str, operands: list) -> None:
    """What autograd does in the operators that it sees: it keeps no inference tensor for the gradients of others."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    if any(x.is_inference() and any(y.requires_grad for y in tensors if y is not x) for x in tensors):
        raise RuntimeError(
            f"Inference tensors cannot be saved for backward: {name} would keep one for the gradients of its other "
            "operands; call it in torch.no_grad() or torch.inference_mode(), or give it a clone"
        )


_attend = _whole(attention.OPERATOR)


def _attention(func: Any, args: tuple, kwargs: dict) -> Any:
    """A causal bias becomes the alignment of a kernel: nothing of it is on the device."""
    bias = attention.bias_in(args, kwargs)
    if bias is None or not any(isinstance(a, SimTensor) for a in (*args, *kwargs.values())):
        return _attend(func, args, kwargs)
    given = attention.without_bias(bias, args, kwargs)
    result = _attend(func, (), given)
    remark = attention.misleading(bias, given["query"], given["key"])
    if remark is not None:
        sessions.active().machine.note("attention bias", remark)
    return result


def _on_host(func: Any, args: tuple, kwargs: dict) -> Any:
    active = sessions.active()
    if active is not None and active.host.spaces:
        return host_call(active, func, args, kwargs)
    return func(*args, **kwargs)


def _making(make: Any) -> Any:
    """A handler of functions that make tensors, which may read or write pinned memory on the way."""

    def handle(func: Any, args: tuple, kwargs: dict) -> Any:
        active = sessions.active()
        if active is not None and active.host.spaces:
            factory_call(active, func, args, kwargs)
        return make(func, args, kwargs)

    return handle


def _on_device(args: tuple, kwargs: dict) -> bool:
    given = [*args, *kwargs.values()]
    given += [item for value in given if isinstance(value, (list, tuple)) for item in value]
    return any(isinstance(item, SimTensor) for item in given)


def _set_data(func: Any, args: tuple, kwargs: dict) -> None:
    tensor, value = args
    if isinstance(value, SimTensor) and not isinstance(tensor, SimTensor):
        return swap_data(tensor, value)
    return func(*args)


def _shallow(func: Any, args: tuple, kwargs: dict) -> bool:
    return False if any(isinstance(a, SimTensor) for a in args) else func(*args)


_FACTORIES = (
    "empty", "zeros", "ones", "full", "rand", "randn", "randint", "arange", "linspace", "logspace", "eye",
    "randperm", "empty_strided", "scalar_tensor", "tril_indices", "triu_indices", "range", "normal", "empty_like",
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "hann_window",
    "empty_permuted",
)


def _direct(name: str) -> Any:
    """A factory for code that torch runs with modes off, as inside its own Python functions."""
    original = getattr(torch, name)

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None and sessions.active() is not None and wants_cuda(kwargs):
            with LOCK:
                return HANDLERS[original](original, args, kwargs)
        return original(*args, **kwargs)

    return make


_NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided")
HANDLERS: dict[Any, Any] = {getattr(torch, name): _making(factory) for name in _FACTORIES}
HANDLERS |= {getattr(torch.Tensor, name): _making(factory) for name in _NEW}
HANDLERS |= {
    torch.tensor: _making(from_data),
    torch.as_tensor: _making(from_data),
    torch.asarray: _making(as_array),
    torch.Tensor.to: _tensor_to,
    torch.Tensor.cuda: _tensor_cuda,
    torch.Tensor.pin_memory: _pin_memory,
    torch.Tensor.is_pinned: _is_pinned,
    torch.Tensor.data.__set__: _set_data,
    torch.nn.functional.scaled_dot_product_attention: _attention,
    torch.nn.functional.one_hot: _whole(aten.one_hot.default),
    torch.nn.functional.linear: _whole(aten.linear.default, 2),
    torch.rms_norm: _whole(aten.rms_norm.default),
    torch._has_compatible_shallow_copy_type: _shallow,
    torch.is_inference: lambda func, args, kwargs: args[0].is_inference() if _on_device(args, {}) else func(*args),
}
# Functions that are taken apart in C++, before the operator is seen: the rules of special.py for them.
RULES = {
    getattr(home, name): SPECIAL[name]
    for name in ("where", "matmul", "__matmul__", "cosine_similarity", *COMPOSITES_REFUSED)
    for home in (torch, torch.Tensor, torch.nn.functional)
    if hasattr(home, name)
}
FACTORIES = {name: _direct(name) for name in (*_FACTORIES, "tensor", "as_tensor")}
set_mode(DeviceMode)
