"""Operators on device tensors: views now, kernels queued, copies and reads handed on."""

from __future__ import annotations

from typing import Any

import torch

from . import infer
from .geometry import Geometry, dense, of
from .infer import NO_KERNEL, OpInfo, Plan, accesses, replace_tensors
from .lock import LOCK
from .ops import Unsupported
from .overlap import refuse_overlap
from .special import SPECIAL
from .task import Task
from .tensor import DeviceStorage, SimTensor, count_change, new_tensor, set_dispatcher
from .values import Ref, fill, plain_torch, view

aten = torch.ops.aten
_infos: dict[int, OpInfo] = {}
GENERATOR = torch.Generator
_SCALARS = (int, float, bool)
GEMM_NAMES = frozenset({"linear", "mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"})
INDEXED = frozenset({"index_put_", "_index_put_impl_", "index_copy_", "index_add_", "scatter_", "scatter_add_"})
DATA_DEPENDENT = frozenset({
    "nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim", "bincount", "nonzero_numpy",
    "repeat_interleave",
})


class MakesTensors(Unsupported):
    """Part of a composite operator met a tensor that PyTorch made where it believes the device to be."""


def dispatch(func: Any, args: tuple, kwargs: dict | None) -> Any:
    """Entry point of every operator that has a device tensor among its arguments."""
    with LOCK:
        info = _infos.get(id(func))
        if info is None:
            info = _infos[id(func)] = OpInfo(func)  # keeps func, so that its id stays its own
        result = _dispatch(info, func, args, kwargs)
        if info.mutated and not info.composite:
            _count_change(info, args, kwargs or {})
        return result


def _dispatch(info: OpInfo, func: Any, args: tuple, kwargs: dict | None) -> Any:
    special = SPECIAL.get(info.name)
    if special is not None:
        result = special(func, args, kwargs or {})
        if result is not NotImplemented:
            return result
    if info.composite:
        result = _taken_apart(info, func, args, kwargs or {})
        if result is not NotImplemented:
            return result
    if info.name in infer.WHOLE and kwargs:
        args, kwargs = _by_position(func, args, kwargs)
    return run(info, args, kwargs or {})


def _count_change(info: OpInfo, args: tuple, kwargs: dict) -> None:
    """The operator was issued: count what it changes in place."""
    for index, word in info.mutated:
        value = args[index] if index < len(args) else kwargs.get(word)
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, SimTensor):
                count_change(item, info.name)


def _by_position(func: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Arguments given by keyword, at their places."""
    kwargs, placed = dict(kwargs), list(args)
    for argument in func._schema.arguments[len(args) :]:
        if not argument.kwarg_only:
            placed.append(kwargs.pop(argument.name, argument.default_value))
    return tuple(placed), kwargs


def _taken_apart(info: OpInfo, func: Any, args: tuple, kwargs: dict) -> Any:
    """A composite operator as the operators that it is made of; one written in Python may make tensors of its own."""
    try:
        if torch._C.DispatchKey.CompositeImplicitAutograd in func.py_kernels:
            with _mode():
                return func.decompose(*args, **kwargs)
        return func.decompose(*args, **kwargs)
    except MakesTensors:
        raise MakesTensors(
            f"{info.name} is not modelled by the simulated device: it makes tensors on its own; "
            "write it with simpler operators, or run this part on the CPU"
        ) from None


def set_mode(mode: Any) -> None:
    """The function mode that composite operators run under (``mode`` sets it; it imports this module)."""
    global _mode
    _mode = mode


_mode: Any = None


def run(info: OpInfo, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A view, or a kernel on the current stream."""
    tensors: list[SimTensor] = []
    key: list[Any] = [info]
    scan(args, tensors, key, info.pointwise)
    if kwargs:
        for word, value in kwargs.items():
            key.append(word)
            scan((value,), tensors, key, info.pointwise)
    device = tensors[0].memory.device if tensors else None
    if device is None:
        raise Unsupported(f"{info.name}: no tensor of the simulated device among its arguments")
    device.check_tensors(tensors)
    if (info.name in DATA_DEPENDENT and "output_size" not in kwargs) or (
        info.name in ("index", "index_put_", "_index_put_impl_") and _has_mask(tensors)
    ):
        device.before_data_dependent(info.name)
        return run_now(device, info, tensors, args, kwargs)
    found = device.plans.get(token := tuple(key))
    if found is None:
        found = make_plan(device, info, token, tensors, args, kwargs)
    if info.is_view:
        return _views(info, found, tensors[0], args)
    if info.name in NO_KERNEL:
        return device.empty(found.outputs[0])
    return launch(device, info, found, tensors, args, kwargs)


def scan(values: Any, tensors: list[SimTensor], key: list[Any], pointwise: bool) -> None:
    """Collect device tensors, and what else decides the result's geometry."""
    for value in values:
        kind = type(value)
        if kind is SimTensor:
            tensors.append(value)
            key.append(value.geometry)
        elif kind in _SCALARS:
            key.append(kind)
            if not pointwise or kind is bool:
                key.append(value)
        elif kind is list or kind is tuple or kind is torch.Size:
            key.append(len(value))
            scan(value, tensors, key, pointwise)
        elif isinstance(value, torch.Tensor):
            if value.device.type == "meta":
                raise MakesTensors(
                    f"an operator made of {key[0].name} and others is not modelled by the simulated device: it makes "
                    "tensors on its own; write it with simpler operators, or run this part on the CPU"
                )
            if value.dim() or value.device.type != "cpu":
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, "
                    f"cuda:0 and {value.device}!"
                )
            key.append(("cpu", value.dtype))
        elif kind is GENERATOR:
            key.append(kind)
        else:
            key.append(value)


def make_plan(
    device: Any, info: OpInfo, token: tuple, tensors: list[SimTensor], args: Any, kwargs: dict[str, Any]
) -> Plan:
    try:
        found = infer.plan(info, device.profile, token, tensors, args, kwargs)
    except (NotImplementedError, torch.AcceleratorError) as error:
        raise Unsupported(
            f"{info.name} is not modelled by the simulated device, because PyTorch cannot tell the shape of its "
            "result; use other operators, or run this part on the CPU"
        ) from error
    if len(device.plans) >= infer.MAX_PLANS:
        device.plans.clear()
    device.plans[token] = found
    return found


def _views(info: OpInfo, found: Plan, base: SimTensor, args: tuple) -> Any:
    if info.name == "as_strided":
        block, g = base.memory.block, found.outputs[0]
        offset = args[3] if len(args) > 3 and args[3] is not None else base.storage_offset()
        start = block.offset + offset * g.item
        if g.numel and (offset < 0 or offset * g.item + g.span > block.request):
            raise RuntimeError(
                f"setStorage: sizes {list(g.shape)}, strides {list(g.stride)}, storage offset {offset}, and itemsize "
                f"{g.item} requiring a storage size of {offset * g.item + g.span} are out of bounds for storage of "
                f"size {block.request}"
            )
        return new_tensor(base.memory, start, found.outputs[0], base)
    like = None if info.func is aten.view.dtype else base  # as another dtype, PyTorch makes a new tensor of it
    made = [
        new_tensor(base.memory, base.start + delta, g, like, detached=info.name == "detach")
        for g, delta in zip(found.outputs, found.deltas, strict=True)
    ]
    if found.single:
        return made[0]
    return tuple(made) if found.is_tuple else made


def launch(
    device: Any, info: OpInfo, found: Plan, tensors: list[SimTensor], args: tuple, kwargs: dict[str, Any]
) -> Any:
    """Queue one kernel; returns its outputs, whose bytes it will write."""
    queue, name = device.queue, info.name
    if name in GEMM_NAMES and queue.workspace is None:
        device.open_workspace(queue)
    changed, reads = accesses(info, args, kwargs, tensors) if info.mutated or info.like else ([], tensors)
    if changed and (info.pointwise or info.name in INDEXED):
        refuse_overlap(changed, tensors, whole=info.name in INDEXED)
    outputs = [] if info.returns_mutated else [device.new(g, queue) for g in found.outputs]
    body = device.body(info, args, kwargs, reads, outputs, changed) if device.values else None
    device.machine.launch(
        queue, name, "kernel", "compute", found.cost.work, share=found.cost.share, reads=[t.place for t in reads],
        writes=[t.place for t in (*outputs, *changed)], run=body,
    )
    if info.returns_mutated:
        return _returned(changed, found)
    if not outputs:
        return None
    if found.single:
        return outputs[0]
    return tuple(outputs) if found.is_tuple else outputs


def _returned(changed: list[SimTensor], found: Plan) -> Any:
    for tensor, g in zip(changed, found.outputs, strict=False):
        if tensor.geometry.shape != g.shape:
            raise Unsupported(
                f"an operator with out= of shape {tensor.geometry.shape} where {g.shape} is needed; "
                "the simulated device does not resize: pass a tensor of the right shape"
            )
    if found.single:
        return changed[0]
    return tuple(changed)


def run_now(device: Any, info: OpInfo, tensors: list[SimTensor], args: tuple, kwargs: dict[str, Any]) -> Any:
    """An operator whose result's shape depends on values: it waits for its stream, as on CUDA."""
    device.sync_current(info.name)
    refs_args, refs_kwargs = replace_tensors(args, ref), {k: replace_tensors(v, ref) for k, v in kwargs.items()}
    if info.mutated:
        changed, reads = accesses(info, args, kwargs, tensors)
        body = Task(
            info.name,
            info.func,
            refs_args,
            refs_kwargs,
            [ref(t) for t in tensors],
            [],
            [ref(t) for t in changed],
            device.report,
        )
        device.kernel(info.name, [t.geometry for t in tensors], reads, changed, body)
        return changed[0]
    if info.name in ("index", "masked_select"):
        return _picked(device, info, tensors, refs_args)
    with plain_torch():
        result = info.func(*fill(refs_args, view), **fill(refs_kwargs, view))
    single = isinstance(result, torch.Tensor)
    made = []
    for value in [result] if single else result:
        made.append(device.constant(info.name, value.contiguous(), tensors))
    return made[0] if single else tuple(made)


def _picked(device: Any, info: OpInfo, tensors: list[SimTensor], args: tuple) -> SimTensor:
    """Elements that a mask picks: their places are read now, the elements when the kernel runs."""
    base, items = args
    with plain_torch():
        if info.name == "masked_select":
            shape = torch.broadcast_shapes(base.geometry.shape, items.geometry.shape)
            base, items = _expanded(base, shape), [_expanded(items, shape)]
        places: list[Any] = []
        for item in items:
            mask = isinstance(item, Ref) and item.geometry.dtype in (torch.bool, torch.uint8)
            places += list(view(item).nonzero().unbind(1)) if mask else [item]
        index = torch.ops.aten.index.Tensor
        meta = torch.empty(base.geometry.shape, dtype=base.geometry.dtype, device="meta")
        shape = index(meta, fill(places, lambda ref: torch.empty(ref.geometry.shape, dtype=torch.int64))).shape
    out = device.new(dense(tuple(shape), base.geometry.dtype), device.queue)
    reads = [base, *(item for item in items if isinstance(item, Ref))]
    body = Task("index", index, (base, places), {}, reads, [ref(out)], [], device.report)
    device.kernel(info.name, [t.geometry for t in tensors], tensors, [out], body)
    return out


def _expanded(source: Ref, shape: Any) -> Ref:
    g = source.geometry
    meta = torch.empty_strided(g.shape, g.stride, dtype=g.dtype, device="meta").expand(shape)
    return Ref(source.space, source.start, of(meta))


def _has_mask(tensors: list[SimTensor]) -> bool:
    return any(t.geometry.dtype in (torch.bool, torch.uint8) for t in tensors[1:])


def ref(tensor: SimTensor) -> Ref:
    """What a queued operation keeps of a tensor."""
    return Ref(tensor.memory.block.space, tensor.start, tensor.geometry)


set_dispatcher(dispatch)

__all__ = ["DeviceStorage", "Geometry", "dispatch", "ref", "run"]
