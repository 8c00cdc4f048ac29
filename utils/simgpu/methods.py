"""Methods of device tensors that C++ would answer wrongly for them: reads, moves, indexing, printing."""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import copies, sessions
from .indexing import get_item, set_item
from .lock import locked
from .ops import Unsupported
from .streams import Stream
from .tensor import SimTensor, new_tensor, wrap

aten = torch.ops.aten


def parse_to(args: tuple, kwargs: dict) -> tuple[Any, Any, bool, bool, Any]:
    """(device, dtype, non_blocking, copy, memory_format) of a ``Tensor.to`` call."""
    kwargs = dict(kwargs)
    copy = kwargs.pop("copy", False)
    other = kwargs.pop("other", None)
    if other is not None or (args and isinstance(args[0], torch.Tensor)):
        other = args[0] if other is None else other
        args = (other.device, other.dtype, *args[1:])
    if len(args) == 4 or (len(args) == 3 and isinstance(args[0], torch.dtype)):
        args, copy = args[:-1], args[-1]
    device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    return device, dtype, non_blocking, bool(copy), memory_format


def _to(self: SimTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    device, dtype, non_blocking, copy, memory_format = parse_to(args, kwargs)
    if device is not None and device.type == "cuda":
        sessions.check_index(device)
    return copies.converted(self, device, dtype, non_blocking, memory_format, copy=copy)


def _cpu(self: SimTensor, memory_format: Any = None) -> torch.Tensor:
    return copies.converted(self, "cpu", None, False)


def _cuda(self: SimTensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> SimTensor:
    sessions.check_index(device)
    return self


def _numpy(self: SimTensor, *args: Any, **kwargs: Any) -> Any:
    raise TypeError(
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )


def _array(self: SimTensor, *args: Any, **kwargs: Any) -> Any:
    return _numpy(self)


def _tolist(self: SimTensor) -> Any:
    return copies.to_host(self).tolist()


def _item(self: SimTensor) -> Any:
    if self.geometry.numel != 1:
        raise RuntimeError(f"a Tensor with {self.geometry.numel} elements cannot be converted to Scalar")
    return copies.to_host(self).item()


def _bool(self: SimTensor) -> bool:
    if self.geometry.numel != 1:
        return bool(torch.empty(self.geometry.numel))  # the error of any other tensor
    return bool(_item(self))


def _repr(self: SimTensor, *args: Any, **kwargs: Any) -> str:
    g = self.geometry
    if self.memory.device.machine.numerics == "shapes":
        return f"tensor(..., device='cuda:0', size={tuple(g.shape)}, dtype={g.dtype})"
    with torch._C.DisableTorchFunction():
        text = repr(copies.to_host(self).detach())
    grad = ", requires_grad=True" if self.requires_grad else ""
    at = text.rfind(", dtype=") if text.rstrip(")").rsplit(", ", 1)[-1].startswith("dtype=") else len(text) - 1
    return text[:at] + ", device='cuda:0'" + text[at:-1] + grad + ")"


def _format(self: SimTensor, spec: str) -> str:
    return format(_item(self), spec) if spec and not self.geometry.shape else _repr(self)


_TYPES = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool", torch.complex64: "ComplexFloat", torch.complex128: "ComplexDouble",
}


def _record_stream(self: SimTensor, stream: Stream) -> None:
    device = sessions.require("Tensor.record_stream")
    device.check_tensors((self,))
    if stream._device is not device:
        raise RuntimeError(
            f"Tensor.record_stream: a stream of another simulated {stream._device.profile.name} was used on a tensor "
            f"of the simulated {device.profile.name} that is active now"
        )
    device.machine.memory.share(self.memory.block, stream.queue)


def _pin(self: SimTensor, device: Any = None) -> None:
    raise RuntimeError(f"cannot pin 'torch.cuda.{self.dtype}' only dense CPU tensors can be pinned")


def _backward(self: SimTensor, *args: Any, **kwargs: Any) -> None:
    raise Unsupported(
        "Tensor.backward: the simulated device does not compute gradients; "
        "the course is about inference, use torch.no_grad() or torch.inference_mode()"
    )


GRADIENTS = ("backward", "grad")     # of torch.autograd


@functools.lru_cache(maxsize=16)
def refuse_gradients(name: str, original: Any) -> Any:
    """torch.autograd.backward and grad: as ever on the CPU, refused for device tensors."""

    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        given += [item for value in given if isinstance(value, (list, tuple)) for item in value]
        if any(isinstance(item, SimTensor) for item in given):
            raise Unsupported(
                f"torch.autograd.{name}: the simulated device does not compute gradients; "
                "the course is about inference, use torch.no_grad() or torch.inference_mode()"
            )
        return original(*args, **kwargs)

    return guarded


def _new_tensor(self: SimTensor, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> torch.Tensor:
    return torch.tensor(data, dtype=dtype or self.dtype, device=device or "cuda")


def _type(self: SimTensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
    """The legacy type's name, or a conversion."""
    if dtype is None:
        return f"torch.cuda.{_TYPES[self.dtype]}Tensor"
    if isinstance(dtype, torch.dtype):
        return self.to(dtype, non_blocking=non_blocking)
    name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}"
    where, _, kind = name.rpartition(".")
    found = next((d for d, word in _TYPES.items() if f"{word}Tensor" == kind), None)
    if found is None or where not in ("torch", "torch.cuda"):
        raise ValueError(f"invalid type: {dtype!r}")
    return self.to("cuda" if where == "torch.cuda" else "cpu", found, non_blocking=non_blocking)


def _new(self: SimTensor, *args: Any, device: Any = None) -> torch.Tensor:
    if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
        return torch.tensor(args[0], dtype=self.dtype, device=device or "cuda")
    return torch.empty(*(args or (0,)), dtype=self.dtype, device=device or "cuda")


def _shallow_copy(self: SimTensor) -> SimTensor:
    if isinstance(self, torch.nn.Parameter):
        return _as(self, self.detach())
    return new_tensor(self.memory, self.start, self.geometry).requires_grad_(self.requires_grad)


def _deepcopy(self: SimTensor, memo: dict) -> SimTensor:
    if id(self) not in memo:
        with torch.no_grad():
            twin = self.detach().clone()
        memo[id(self)] = _as(self, twin)
    return memo[id(self)]


def _as(like: SimTensor, twin: SimTensor) -> SimTensor:
    """``twin`` as a Parameter when ``like`` is one."""
    if isinstance(like, torch.nn.Parameter):
        return torch.nn.Parameter(twin, requires_grad=like.requires_grad)
    return twin.requires_grad_(like.requires_grad)


def _set_data(self: SimTensor, value: torch.Tensor) -> None:
    if not isinstance(value, SimTensor):
        swap_data(self, value)
        return
    self.memory.device.check_tensors((self, value))
    same = value     # its counter of changes stays with a tensor, or its not having one
    if value.uncounted is not self.uncounted:
        same = wrap(value.memory, value.start, value.geometry, value.inference, self.uncounted)
    with torch._C.DisableTorchFunction():
        torch.Tensor.data.__set__(self, same)
    self.inference = value.inference
    self.geometry, self.memory, self.start, self._place = value.geometry, value.memory, value.start, None


def swap_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """``tensor.data = value`` across kinds of tensors: the Python object stays, what it is changes."""
    with torch._C.DisableTorchFunction(), torch._C._InferenceMode(value.is_inference()), torch.no_grad():
        twin = value.detach()
        if isinstance(tensor, torch.nn.Parameter):
            twin = torch.nn.Parameter(twin, requires_grad=tensor.requires_grad)
        torch.utils.swap_tensors(tensor, twin)


def _refuse(name: str, advice: str) -> Any:
    def refuse(self: SimTensor, *args: Any, **kwargs: Any) -> Any:
        raise Unsupported(f"{name} is not modelled by the simulated device; {advice}")

    return refuse


_ADVICE = "copy the tensor to the CPU first"
for _name, _method in {
    "to": _to,
    "cpu": _cpu,
    "cuda": _cuda,
    "numpy": _numpy,
    "__array__": _array,
    "tolist": _tolist,
    "item": _item,
    "__bool__": _bool,
    "__int__": lambda self: int(_item(self)),
    "__float__": lambda self: float(_item(self)),
    "__index__": lambda self: _item(self).__index__(),
    "__complex__": lambda self: complex(_item(self)),
    "__repr__": _repr,
    "__str__": _repr,
    "__format__": _format,
    "__getitem__": get_item,
    "__setitem__": set_item,
    "record_stream": _record_stream,
    "pin_memory": _pin,
    "backward": _backward,
    "new_tensor": _new_tensor,
    "__copy__": _shallow_copy,
    "type": _type,
    "new": _new,
    "__deepcopy__": _deepcopy,
    "__reduce_ex__": _refuse("pickling or saving a device tensor", _ADVICE),
    "__dlpack__": _refuse("dlpack exchange", _ADVICE),
    "share_memory_": _refuse("Tensor.share_memory_", _ADVICE),
    "register_hook": _refuse("Tensor.register_hook", "gradients are not computed"),
    "storage": lambda self: self.untyped_storage(),
}.items():
    setattr(SimTensor, _name, locked(_method))
SimTensor.data = property(lambda self: self.detach(), _set_data)
