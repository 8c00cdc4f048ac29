"""What an operator returns for given geometries, found once on meta tensors and remembered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch

from . import attention
from .costs import Cost, estimate
from .geometry import Geometry, dense, of
from .profiles import Profile
from .tensor import SimTensor

MAX_PLANS = 50_000
WRITE_ONLY = frozenset({
    "zero_", "fill_", "copy_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_", "log_normal_", "cauchy_",
    "geometric_",
})
# Operators that look at the geometry of their input only.
LIKE = frozenset({
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros", "new_ones",
    "new_full",
})
WIDENED = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "scaled_dot_product_attention", "mv", "addmv", "dot"}
)
RANDOM = frozenset({
    "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial", "native_dropout", "uniform_", "normal_",
    "random_", "bernoulli_", "exponential_", "dropout", "normal", "poisson", "log_normal_", "cauchy_", "geometric_",
})
WHOLE = frozenset(
    {"scaled_dot_product_attention", "rms_norm", "linear"}
)  # one kernel each, whatever PyTorch makes of them on a CPU
GEMM_KERNELS = {    # what CUDA calls the kernel of a matrix product in errors
    "bmm": "baddbmm_cuda", "baddbmm": "baddbmm_cuda", "mv": "addmv_impl_cuda", "addmv": "addmv_impl_cuda", "dot": "dot",
    "convolution": "conv", "scaled_dot_product_attention": "baddbmm_cuda",
}
FLOATS_ONLY = {     # operators without a kernel for integers, and what CUDA calls their kernel in errors
    "_softmax": "host_softmax", "_log_softmax": "host_softmax", "gelu": "GeluCUDAKernelImpl", "silu": "silu_cuda",
    "native_layer_norm": "LayerNormKernelImpl", "rms_norm": "LayerNormKernelImpl", "multinomial": "multinomial",
}
TYPE_NAMES = {
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool",
}
VIEWS = frozenset({     # what makes views although its schema does not say so
    "alias", "detach", "lift_fresh", "view", "_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk",
})
NO_KERNEL = frozenset({"empty_like", "new_empty", "new_empty_strided", "empty_permuted"})


class OpInfo:
    """What the schema of an operator says."""

    __slots__ = (
        "composite",
        "decompose",
        "func",
        "is_view",
        "like",
        "mutated",
        "name",
        "out",
        "pointwise",
        "random",
        "returns_mutated",
        "widen",
        "writes_only",
    )

    def __init__(self, func: Any):
        schema = func._schema
        self.func = func
        self.name = schema.name.split("::")[1]
        self.is_view = func.is_view or self.name in VIEWS
        self.mutated = tuple(
            (index, argument.name)
            for index, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        self.out = bool(self.mutated) and all(      # out= arguments come by keyword
            a.kwarg_only for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
        )
        self.like = self.name in LIKE
        self.writes_only = self.name in WRITE_ONLY or self.out
        self.returns_mutated = any(r.alias_info is not None and r.alias_info.is_write for r in schema.returns)
        self.pointwise = torch.Tag.pointwise in func.tags or self.name in ("floor_divide", "floor_divide_")
        self.composite = self.name not in WHOLE and torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), torch._C.DispatchKey.CompositeImplicitAutograd
        )
        self.widen = self.name in WIDENED
        self.random = self.name in RANDOM


class Form(NamedTuple):
    """Outputs of one operator on one set of geometries; ``deltas`` are byte offsets of views from their base."""

    outputs: tuple[Geometry, ...]
    deltas: tuple[int, ...] | None
    single: bool
    is_tuple: bool


class Plan(NamedTuple):
    """A form, and what the operator costs on a device."""

    outputs: tuple[Geometry, ...]
    deltas: tuple[int, ...] | None
    single: bool
    is_tuple: bool
    cost: Cost


_forms: dict[tuple, Form] = {}  # of all sessions: they do not depend on the device


def plan(
    info: OpInfo, profile: Profile, token: tuple, tensors: Sequence[SimTensor], args: Any, kwargs: dict[str, Any]
) -> Plan:
    """What an operator returns on a device, and its cost there; ``token`` is all that decides the former."""
    key = (token, torch.get_default_dtype())
    form = _forms.get(key)
    if form is None:
        form = _form(info, tensors, args, kwargs)
        if len(_forms) >= MAX_PLANS:
            _forms.clear()
        _forms[key] = form
    cost = Cost(0, 1) if info.is_view else _cost(info, profile, tensors, form.outputs, args, kwargs)
    return Plan(*form, cost)


def _form(info: OpInfo, tensors: Sequence[SimTensor], args: Any, kwargs: dict[str, Any]) -> Form:
    """Run the operator on meta tensors of the same geometry."""
    if info.widen:
        _same_dtype(info.name, tensors)
    if info.name in FLOATS_ONLY and not _floating(tensors[0].geometry.dtype):
        raise _not_implemented(FLOATS_ONLY[info.name], tensors[0].geometry.dtype)
    if info.name in WHOLE:
        out = _whole(info.name, [a.geometry if isinstance(a, SimTensor) else None for a in args], kwargs)
        return Form((out,), None, True, False)
    metas: dict[int, torch.Tensor] = {}
    with torch._C.DisableTorchFunction(), torch._C._InferenceMode(False), torch.no_grad():
        meta_args = replace_tensors(args, lambda t: _meta(t.geometry, metas, t))
        meta_kwargs = {
            key: _on_meta(key, replace_tensors(value, lambda t: _meta(t.geometry, metas, t)))
            for key, value in kwargs.items()
        }
        if info.pointwise and not info.mutated and not info.is_view and "memory_format" not in kwargs:
            whole = _whole_shape([t.geometry for t in tensors])
            result = _pointwise(info, args, kwargs, whole, list(metas.values()))
        else:
            result = info.func(*meta_args, **meta_kwargs)
    single = isinstance(result, torch.Tensor)
    results = [result] if single else [r for r in result or () if isinstance(r, torch.Tensor)]
    outputs = tuple(of(r) for r in results)
    deltas = None
    if info.is_view:
        deltas = tuple(r.storage_offset() * g.item for r, g in zip(results, outputs, strict=True))
    return Form(outputs, deltas, single, isinstance(result, tuple))


def _cost(
    info: OpInfo, profile: Profile, tensors: Sequence[SimTensor], outputs: tuple[Geometry, ...], args: Any, kwargs: dict
) -> Cost:
    inputs = [t.geometry for t in accesses(info, args, kwargs, tensors)[1]] if info.writes_only or info.like else [
        t.geometry for t in tensors
    ]
    causal = attention.causal_in(args, kwargs) if info.name == attention.NAME else False
    return estimate(profile, info.name, inputs, outputs or inputs[:1], causal)


def accesses(
    info: OpInfo, args: Any, kwargs: dict[str, Any], tensors: Sequence[SimTensor]
) -> tuple[list[SimTensor], list[SimTensor]]:
    """The device tensors that an operator changes, and those that it reads."""
    changed: list[SimTensor] = []
    for index, word in info.mutated:
        value = args[index] if index < len(args) else kwargs.get(word)
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, SimTensor):
                changed.append(item)
            elif item is not None:
                raise RuntimeError(f"{info.name}: expected its output on cuda:0, but it is on {item.device}")
    reads = [] if info.like else list(tensors)
    for written in changed if info.writes_only else ():
        for place in range(len(reads) - 1, -1, -1):     # once: an out= that is an input as well is read, too
            if reads[place] is written:
                del reads[place]
                break
    return changed, reads


def _same_dtype(name: str, tensors: Sequence[SimTensor]) -> None:
    """Meta kernels of matrix products do not compare dtypes; the devices' do."""
    found = list(dict.fromkeys(t.geometry.dtype for t in tensors if t.geometry.dtype is not torch.bool))
    if len(found) > 1:
        raise RuntimeError(f"{name}: expected inputs of the same dtype, but got {' and '.join(map(str, found))}")
    dtype = found[0] if found else torch.bool
    if not _floating(dtype):
        raise _not_implemented(GEMM_KERNELS.get(name, "addmm_cuda"), dtype)


def _floating(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _not_implemented(kernel: str, dtype: torch.dtype) -> RuntimeError:
    return RuntimeError(f"\"{kernel}\" not implemented for '{TYPE_NAMES.get(dtype, dtype)}'")


def _whole(name: str, inputs: list[Geometry | None], kwargs: dict[str, Any]) -> Geometry:
    """Result of an operator that stays in one piece."""
    first = inputs[0]
    if name == "rms_norm":
        return dense(first.shape, first.dtype)
    return _linear(*inputs[:3]) if name == "linear" else attention.result_of(
        *inputs[:4], grouped=bool(kwargs.get("enable_gqa"))
    )


def _linear(first: Geometry, weight: Geometry, bias: Geometry | None = None) -> Geometry:
    if len(weight.shape) not in (1, 2) or not first.shape or first.shape[-1] != weight.shape[-1]:
        raise RuntimeError(f"linear: input {first.shape} and weight {weight.shape} do not fit")
    rows = weight.shape[:-1]
    if bias is not None and bias.shape not in ((), (1,), rows):
        raise RuntimeError(f"linear: bias {bias.shape} does not fit the weight {weight.shape}")
    return dense((*first.shape[:-1], *rows), first.dtype)


def _whole_shape(inputs: list[Geometry]) -> tuple[int, ...] | None:
    """Shape of a pointwise result that is contiguous, as all its inputs are; None where one is not, or has nothing."""
    sizes = [set(given) for given in zip_longest(*(reversed(g.shape) for g in inputs), fillvalue=1)]
    if any(len(given - {1}) > 1 or 0 in given for given in sizes):
        return None
    whole = [max(given) for given in sizes]
    return tuple(reversed(whole)) if all(_in_order(g, whole) for g in inputs) else None


def _in_order(g: Geometry, whole: list[int]) -> bool:
    """Whether the strides are the usual ones, from the last dimension on, but for those that are repeated."""
    usual = reversed(dense(g.shape, g.dtype).stride)
    dims = zip(reversed(g.shape), reversed(g.stride), usual, whole, strict=False)
    return all(step == other or (size < full and not step) for size, step, other, full in dims)


def _pointwise(
    info: OpInfo, args: Any, kwargs: dict[str, Any], whole: tuple[int, ...] | None, metas: list[torch.Tensor]
) -> Any:
    """Layout from a meta addition where it needs one, dtype from the operator on one element: kernels of the meta
    device import PyTorch's compiler, which takes more than a second."""

    def one(tensor: SimTensor) -> torch.Tensor:
        return torch.ones((1,) * len(tensor.geometry.shape), dtype=tensor.geometry.dtype)

    probe = info.func(
        *replace_tensors(args, one),
        **{key: "cpu" if key == "device" else replace_tensors(v, one) for key, v in kwargs.items()},
    )
    if not isinstance(probe, torch.Tensor):
        raise NotImplementedError(f"{info.name} returns {type(probe).__name__}")
    if whole is not None:
        return torch.empty(whole, dtype=probe.dtype, device="meta")
    total = metas[0].to(torch.float32)
    for other in metas[1:]:
        total = torch.add(total, other.to(torch.float32))
    return torch.empty_like(total, dtype=probe.dtype)


def _meta(g: Geometry, made: dict[int, torch.Tensor], tensor: SimTensor) -> torch.Tensor:
    found = made.get(id(tensor))
    if found is None:
        found = made[id(tensor)] = torch.empty_strided(g.shape, g.stride, dtype=g.dtype, device="meta")
    return found


def _on_meta(key: str, value: Any) -> Any:
    return torch.device("meta") if key == "device" and value is not None else value


def replace_tensors(value: Any, change: Callable[[SimTensor], Any]) -> Any:
    """The structure ``value`` with every device tensor changed."""
    if isinstance(value, SimTensor):
        return change(value)
    if isinstance(value, list):
        return [replace_tensors(item, change) for item in value]
    if isinstance(value, tuple):
        return tuple(replace_tensors(item, change) for item in value)
    return value
