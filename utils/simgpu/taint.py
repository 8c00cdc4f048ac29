"""Which elements of a result depend on bytes that cannot be trusted, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .values import Ref, fill, refs_in, view

Masks = Mapping[Ref, torch.Tensor]
MaskOf = Callable[[Ref], torch.Tensor]

# Float operators through which NaN does not reach every element that depends on it.
SWALLOWS = frozenset({
    "nan_to_num", "nan_to_num_", "fmax", "fmin", "nansum", "nanmean", "nanmedian", "topk", "sort", "multinomial",
    "where", "masked_fill", "masked_fill_", "heaviside", "sign", "isnan", "zero_", "fill_", "kthvalue", "constant",
})
# Operators that move elements of their first argument unchanged: run on the taint, they move the taint.
MOVES = frozenset({
    "cat", "stack", "clone", "index_select", "gather", "index", "embedding", "flip", "roll", "repeat",
    "constant_pad_nd", "_to_copy", "contiguous", "tril", "triu", "expand_copy",
})
# Operators that write some elements of their first argument, at places given by an index: where the data stand.
INDEXED_WRITES = {
    "index_put": 2, "_index_put_impl": 2, "masked_scatter": 2, "index_copy": 3, "scatter": 3, "index_fill": 3,
    "scatter_add": 3, "index_add": 3,
}
# Operators whose every result depends on all elements of its own row, along ``dim``, of their first argument.
ROWWISE = frozenset({
    "argmax", "argmin", "max", "min", "amax", "amin", "aminmax", "sum", "prod", "mean", "any", "all", "cumsum",
    "cumprod", "cummax", "cummin", "topk", "sort", "kthvalue", "median", "nanmedian", "nansum", "nanmean", "mode",
    "logsumexp", "multinomial", "count_nonzero", "logcumsumexp", "_softmax", "_log_softmax", "var", "std",
})
# What stands in for tainted floats where NaN would make the operator fail.
SUBSTITUTE = {"multinomial": 1.0, "bernoulli": 0.5}
# What a comparison says of tainted elements, of any dtype: the same as of NaN.
COMPARED = {"eq": False, "ne": True, "lt": False, "le": False, "gt": False, "ge": False}


def dependent(task: Any, out: Ref, masks: Masks) -> torch.Tensor | None:
    """Which elements of ``out`` depend on tainted ones, as a bool tensor; None: all."""

    def mask_of(ref: Ref) -> torch.Tensor:
        return (masks[ref] != 0) if ref in masks else torch.zeros(ref.geometry.shape, dtype=torch.bool)

    try:
        found = _by_rule(task, out, masks, mask_of)
        return found if found is None or found.shape == out.geometry.shape else found.expand(out.geometry.shape)
    except (RuntimeError, IndexError, TypeError, AttributeError, ValueError, KeyError):
        return None


def _by_rule(task: Any, out: Ref, masks: Masks, mask_of: MaskOf) -> torch.Tensor | None:
    name, args, shape = task.name, task.args, out.geometry.shape
    rule = _CHOICES.get(name)
    if rule is not None and (name != "where" or len(args) == 3):
        return rule(args, shape, mask_of)
    if name in MOVES:
        return _moved(task, masks, mask_of)
    if name.rstrip("_") in INDEXED_WRITES:
        return _written(task, masks, mask_of)
    if task.pointwise:
        total = torch.zeros(shape, dtype=torch.bool)
        for ref in masks:
            total |= mask_of(ref).expand(shape)
        return total
    floats = out.geometry.dtype.is_floating_point and all(ref.geometry.dtype.is_floating_point for ref in masks)
    if floats and name not in SWALLOWS:
        return torch.isnan(view(out))
    return _rows(task, shape, masks, mask_of) if name in ROWWISE else None


# operators that choose by a mask


def _where(args: Sequence[Any], shape: tuple[int, ...], mask_of: MaskOf) -> torch.Tensor:
    which, *values = args
    nothing = torch.zeros(shape, dtype=torch.bool)
    picked = [mask_of(value).expand(shape) if isinstance(value, Ref) else nothing for value in values]
    return mask_of(which).expand(shape) | torch.where(view(which), *picked)


def _masked_fill(args: Sequence[Any], shape: tuple[int, ...], mask_of: MaskOf) -> torch.Tensor:
    source, which = args[:2]
    filler = mask_of(args[2]) if isinstance(args[2], Ref) else torch.zeros((), dtype=torch.bool)
    return mask_of(which).expand(shape) | torch.where(view(which), filler, mask_of(source).expand(shape))


def _filled(args: Sequence[Any], shape: tuple[int, ...], mask_of: MaskOf) -> torch.Tensor:
    value = args[1] if len(args) > 1 else None
    return mask_of(value).expand(shape) if isinstance(value, Ref) else torch.zeros(shape, dtype=torch.bool)


def _copied(args: Sequence[Any], shape: tuple[int, ...], mask_of: MaskOf) -> torch.Tensor:
    return mask_of(args[1]).expand(shape)


def _attention(args: Sequence[Any], shape: tuple[int, ...], mask_of: MaskOf) -> torch.Tensor:
    """A query taints its row; a key or value, even a masked one (0 times NaN), all rows of its head."""
    query, key, value, *mask = args[:4]
    found = mask_of(query).any(-1, keepdim=True).expand(shape)
    for ref in (key, value):
        heads = mask_of(ref).any(-1, keepdim=True).any(-2, keepdim=True)
        if heads.dim() > 2 and heads.shape[-3] not in (1, shape[-3]):   # each serves several query heads
            heads = heads.repeat_interleave(shape[-3] // heads.shape[-3], -3)
        found = found | heads
    return found | mask_of(mask[0]).any(-1, keepdim=True) if mask and isinstance(mask[0], Ref) else found


_CHOICES = {
    "where": _where, "masked_fill": _masked_fill, "masked_fill_": _masked_fill, "zero_": _filled, "fill_": _filled,
    "copy_": _copied, "scaled_dot_product_attention": _attention,
}


# operators that move elements, or write them at places given by an index


def _moved(task: Any, masks: Masks, mask_of: MaskOf) -> torch.Tensor | None:
    """The operator on the taint of its data; an element fetched through a tainted index is tainted."""
    first, *rest = task.args
    if task.name == "constant_pad_nd":
        rest, kwargs = rest[:1], {}     # the padding itself is clean, whatever its value
    else:
        kwargs = {key: value for key, value in task.kwargs.items() if key != "dtype"}
    data, places = refs_in(first), refs_in(rest)
    if any(ref not in data and ref not in places for ref in masks):
        return None     # a mask: nobody knows how many elements it picks
    moved = task.call(
        fill(first, lambda ref: mask_of(ref).to(torch.float32)), *fill(rest, _index_of(masks)), **kwargs
    ) != 0
    if any(ref in masks for ref in places):
        moved = moved | _through(task.name, task.args, moved.dim(), mask_of)
    return moved


def _index_of(masks: Masks) -> Callable[[Ref], torch.Tensor]:
    """An index with a valid one in place of what is tainted."""

    def index(ref: Ref) -> torch.Tensor:
        return view(ref).masked_fill(masks[ref] != 0, 0) if ref in masks else view(ref)

    return index


def _through(name: str, args: Sequence[Any], dims: int, mask_of: MaskOf) -> torch.Tensor:
    """Which elements of a result of ``dims`` dimensions were fetched through a tainted index."""
    if name == "embedding":
        return mask_of(args[1]).unsqueeze(-1)
    if name == "gather":
        return mask_of(args[2])
    if name == "index_select":
        mask, dim = mask_of(args[2]).reshape(-1), args[1] % max(dims, 1)
        return mask.reshape(-1, *[1] * (dims - dim - 1))
    if name != "index":
        raise ValueError(f"no rule for a tainted index of {name}")
    used = [place for place, item in enumerate(args[1]) if item is not None]
    mask = torch.zeros((), dtype=torch.bool)
    for place in used:
        item = args[1][place]
        mask = mask | (mask_of(item) if isinstance(item, Ref) else torch.zeros(item.shape, dtype=torch.bool))
    together = used[-1] - used[0] + 1 == len(used)
    before = used[0] if together else 0
    return mask.reshape(*mask.shape, *[1] * (dims - mask.dim() - before))


def _written(task: Any, masks: Masks, mask_of: MaskOf) -> torch.Tensor | None:
    """A write through an index: new taint where it wrote, the old one elsewhere."""
    at = INDEXED_WRITES[task.name.rstrip("_")]
    first, *index = task.args[:at]
    source = task.args[at] if len(task.args) > at else 0
    if any(ref in masks for ref in refs_in(index)):
        return None     # nobody knows where it wrote
    kwargs = {key: value for key, value in task.kwargs.items() if key == "accumulate"}
    target = mask_of(first).to(torch.float32)
    taint = mask_of(source).to(torch.float32) if isinstance(source, Ref) else torch.zeros(source.shape) if isinstance(
        source, torch.Tensor) else 0
    more = [a for a in task.args[at + 1 :] if isinstance(a, bool)]
    return task.call(target, *fill(index, view), taint, *more, **kwargs) != 0


# operators along a dimension


def _rows(task: Any, shape: tuple[int, ...], masks: Masks, mask_of: MaskOf) -> torch.Tensor | None:
    """Every result depends on its row of the first argument, which alone is tainted."""
    first = task.args[0]
    if not isinstance(first, Ref) or any(ref != first for ref in masks):
        return None
    mask, dims = mask_of(first), _reduced(task)
    if dims is None:
        return None
    if task.name.startswith("cum"):
        return mask.to(torch.int64).cumsum(dims[0]) > 0
    for dim in dims:
        mask = mask.any(dim, keepdim=True)
    if len(shape) != mask.dim():
        mask = mask.squeeze(tuple(dims))
    return mask.expand(shape)


def _reduced(task: Any) -> list[int] | None:
    """The dimensions that an operator reduces, searches or sorts; None: all."""
    if task.name == "multinomial":
        return [-1]
    for place, argument in enumerate(task.call._schema.arguments):
        if argument.name == "dim":
            default = argument.default_value
            value = task.args[place] if place < len(task.args) else task.kwargs.get("dim", default)
            return None if value is None or value == [] else [value] if isinstance(value, int) else list(value)
    return None
