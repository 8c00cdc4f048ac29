"""Torch functions on CPU tensors: what they read and write of pinned memory.

A function with a pinned tensor among its arguments runs under a dispatch mode that sees every operator it is made of,
and takes from the operator's schema what is read, what is written and what is a view. The few functions that reach the
bytes without an operator are named here; numpy cannot be seen.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .lock import LOCK
from .tensor import SimTensor

# Shortcuts: they touch no bytes, and ordinary programs call them often.
READS_NOTHING = frozenset({
    "__get__", "size", "stride", "dim", "numel", "data_ptr", "storage_offset", "is_contiguous", "untyped_storage",
    "element_size", "is_pinned", "view_as", "t", "transpose", "permute", "numpy", "detach", "unsqueeze",
    "squeeze", "narrow", "split", "chunk", "unbind", "expand", "expand_as", "as_strided", "select", "__len__",
    "ndimension", "nelement", "requires_grad_", "is_floating_point", "is_complex", "get_device", "__hash__",
    "register_hook", "_is_view", "is_shared", "is_same_size", "record_stream", "__set__", "__array__", "is_tensor",
    "storage", "typed_storage", "is_set_to", "is_conj", "is_neg", "is_inference", "dim_order", "result_type",
})
# Functions that reach the bytes without an operator, and what they do there.
DIRECT_READS = frozenset({"tolist", "__repr__", "__str__"})
DIRECT_WRITES = frozenset({"apply_", "map_", "map2_"})
# Operators that take a tensor as a pattern only, or always give a view though their schema does not say so.
UNTOUCHED = frozenset({
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
    "new_empty_strided", "new_zeros", "new_ones", "new_full", "_unsafe_view", "_reshape_alias", "unsafe_split",
    "unsafe_split_with_sizes", "unsafe_chunk", "is_same_size", "is_set_to", "is_pinned", "result_type", "sym_size",
    "sym_stride", "sym_numel", "sym_storage_offset", "size", "stride", "dim", "numel", "storage_offset",
    "is_contiguous", "record_stream", "_version", "is_inference", "is_complex", "is_floating_point",
    "_conj", "_neg_view", "_fw_primal", "alias",
})
# Operators between devices: they read a pinned tensor in stream order, which the copy itself accounts for.
BETWEEN_DEVICES = frozenset({"copy_", "_to_copy", "index", "index_put_", "_index_put_impl_", "set_", "set_data"})


def host_call(device: Any, func: Any, args: tuple, kwargs: dict) -> Any:
    """Run a function on CPU tensors, telling the device which pinned ones it reads and writes."""
    name = getattr(func, "__name__", "")
    if name in READS_NOTHING:
        return func(*args, **kwargs)
    pinned, on_device = pinned_in(device, (*args, *kwargs.values()))
    if not pinned or (on_device and all(tensor.dim() for tensor in pinned)):
        return func(*args, **kwargs)
    label = _label(name)
    if name in DIRECT_READS or name in DIRECT_WRITES:
        touch(device, pinned[:1], label, write=name in DIRECT_WRITES)
        touch(device, pinned[1:], label)
    with Accesses(device, label), _nested():
        return func(*args, **kwargs)


def factory_call(device: Any, func: Any, args: tuple, kwargs: dict) -> None:
    """A function that makes a tensor is about to run: account for the pinned memory that it reads."""
    name = func.__name__
    values = [value for word, value in kwargs.items() if word not in ("out", "input", "self")]
    if name in ("tensor", "as_tensor", "asarray"):
        data = args[0] if args else next((kwargs[w] for w in ("data", "obj") if w in kwargs), None)
        wanted = kwargs.get("dtype", args[1] if len(args) > 1 else None)
        same = name != "tensor" and isinstance(data, torch.Tensor) and wanted in (None, data.dtype)
        values = [] if same and not kwargs.get("copy") else [data]
    else:
        values += args[1:] if name.endswith("_like") or name.startswith("new_") else args
    touch(device, pinned_in(device, values)[0], _label(name))


def touch(device: Any, tensors: list[torch.Tensor], label: str, *, write: bool = False) -> None:
    """The host reads or writes these pinned tensors."""
    if tensors:
        with LOCK:
            call = device.host.next_call()
            for tensor in tensors:
                device.host.access(tensor, write, label, call)


def pinned_in(device: Any, values: Any) -> tuple[list[torch.Tensor], bool]:
    """The pinned tensors among values, and whether a device tensor is there, too."""
    found, on_device = [], False
    for value in values:
        if isinstance(value, SimTensor):
            on_device = True
        elif isinstance(value, torch.Tensor):
            if device.host.space_of(value) is not None:
                found.append(value)
        elif isinstance(value, (list, tuple, dict)):
            inside, there = pinned_in(device, value.values() if isinstance(value, dict) else value)
            found += inside
            on_device |= there
    return found, on_device


def _label(name: str) -> str:
    return f"host {name.strip('_')}"


# operators


class Accesses(TorchDispatchMode):
    """Tells a device which pinned memory the operators of one function read and write."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first call imports torch's compiler, which takes seconds

    def __init__(self, device: Any, label: str):
        super().__init__()
        self.device, self.label, self.call = device, label, device.host.next_call()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if _composite(func) and not any(isinstance(value, SimTensor) for value in (*args, *kwargs.values())):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        written = _written(func)
        if written is not None:
            self._account(func, written, args, kwargs)
        return func(*args, **kwargs)

    def _account(self, func: Any, written: frozenset, args: tuple, kwargs: dict) -> None:
        reads, writes = [], []
        for word, value in (*enumerate(args), *kwargs.items()):
            found, _ = pinned_in(self.device, (value,))
            (writes if word in written else reads).extend(found)
        if not reads and not writes:
            return
        if pinned_in(self.device, (*args, *kwargs.values()))[1]:
            if func._schema.name.removeprefix("aten::") in BETWEEN_DEVICES:
                return
            reads = [tensor for tensor in reads if not tensor.dim()]
        with LOCK:
            for tensor in reads:
                if not any(_same(tensor, other) for other in writes):
                    self.device.host.access(tensor, False, self.label, self.call)
            for tensor in writes:
                self.device.host.access(tensor, True, self.label, self.call)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same bytes in the same order: ``x[i] += 1`` copies a part onto itself."""
    with torch._C.DisableTorchFunction():
        return one is other or (
            one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()
        )


@lru_cache(maxsize=4096)
def _composite(func: Any) -> bool:
    """Whether an operator is made of others (it arrives whole in inference mode only)."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


@lru_cache(maxsize=4096)
def _written(func: Any) -> frozenset | None:
    """Positions and names of the arguments that an operator writes; None when it touches no bytes."""
    schema = func._schema
    if schema.name.removeprefix("aten::") in UNTOUCHED or torch.Tag.inplace_view in func.tags:
        return None
    if any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns):
        return None
    words: list[Any] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            words += [position, argument.name]
    return frozenset(words)


# storages, and what is pickled through them

_inside = threading.local()  # ``method``: whether something is running that is accounted for as a whole


def storage_methods() -> dict[str, Any]:
    """Methods of torch.UntypedStorage that tell the active device what they touch."""
    methods = dict.fromkeys(("__getitem__", "tolist", "clone", "cpu"), False)
    methods |= dict.fromkeys(("__setitem__", "fill_", "copy_", "byteswap"), True)
    storage = torch.UntypedStorage
    return {name: _telling(getattr(storage, name), name, write) for name, write in methods.items()
            if hasattr(storage, name)}


def tensor_methods() -> dict[str, Any]:
    """Methods of torch.Tensor that reach the bytes, and that no function mode sees."""
    return {"_reduce_ex_internal": _telling(torch.Tensor._reduce_ex_internal, "", False, "host pickle")}


@lru_cache(maxsize=64)  # every session asks for all of them
def _telling(original: Any, name: str, write: bool, label: str = "") -> Any:
    from . import sessions

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        device = sessions.active()
        if device is None or not device.host.spaces or getattr(_inside, "method", False):
            return original(self, *args, **kwargs)
        with _nested():
            sources = [arg for arg in args if isinstance(arg, torch.UntypedStorage)]
            touch(device, _pinned_wholes(device, sources), label or f"host storage {name.strip('_')}")
            touch(device, _pinned_wholes(device, [self]), label or f"host storage {name.strip('_')}", write=write)
            return original(self, *args, **kwargs)

    return method


@contextmanager
def _nested() -> Iterator[None]:
    before = getattr(_inside, "method", False)
    _inside.method = True
    try:
        yield
    finally:
        _inside.method = before


def _pinned_wholes(device: Any, things: list) -> list[torch.Tensor]:
    """The pinned ones of tensors and storages; of a storage, all of its bytes."""
    tensors = []
    with torch._C.DisableTorchFunction():
        for thing in things:
            if isinstance(thing, torch.Tensor):
                tensors.append(thing)
            elif thing.device.type == "cpu":
                tensors.append(torch.empty(0, dtype=torch.uint8).set_(thing))
        return pinned_in(device, tensors)[0]
