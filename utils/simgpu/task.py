"""What a queued operation computes, and what it makes of bytes that cannot be trusted.

What an operation makes of tainted inputs is found by element where that is known (element-wise, copying, indexing, and
float results that NaN reaches); elsewhere the whole result is tainted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .ops import Op
from .space import meet
from .values import (
    CLEAN,
    DERIVED,
    TORN,
    UNWRITTEN,
    Ref,
    fill,
    mark_key,
    plain_torch,
    poison,
    refs_in,
    set_taint,
    taint_view,
    view,
)

# Float operators through which NaN does not reach every element that depends on it.
SWALLOWS = frozenset({
    "nan_to_num", "nan_to_num_", "fmax", "fmin", "nansum", "nanmean", "nanmedian", "topk", "sort", "multinomial",
    "where", "masked_fill", "masked_fill_", "heaviside", "sign", "isnan", "zero_", "fill_",
})
# Operators that move elements of their first input unchanged: run on the taint, they move the taint.
MOVES = frozenset({
    "cat", "stack", "clone", "index_select", "gather", "index", "embedding", "copy_", "flip", "roll", "repeat",
    "constant_pad_nd", "_to_copy", "repeat_interleave", "contiguous", "tril", "triu", "expand_copy",
})
# Operators that write some elements of their first argument, at places given by an index.
INDEXED_WRITES = frozenset({
    "index_put_", "index_copy_", "scatter_", "index_fill_", "scatter_add_", "index_add_", "masked_scatter_",
    "_index_put_impl_",
})



class Task:
    """A queued computation: ``call`` on CPU views, results into ``outputs``, with taint.

    ``args`` holds Refs in place of device tensors; ``changed`` are the Refs that ``call`` itself changes.
    """

    __slots__ = ("args", "call", "changed", "kwargs", "name", "outputs", "pointwise", "reads", "report", "widen")

    def __init__(
        self,
        name: str,
        call: Callable,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        reads: Sequence[Ref],
        outputs: Sequence[Ref],
        changed: Sequence[Ref],
        report: Callable[[Op, Ref], None],
        *,
        pointwise: bool = False,
        widen: bool = False,
    ):
        self.name, self.call, self.args, self.kwargs = name, call, args, kwargs
        self.reads, self.outputs, self.changed, self.report = reads, outputs, changed, report
        self.pointwise, self.widen = pointwise, widen

    def __call__(self, op: Op) -> None:
        with plain_torch():
            masks = self._masks(op)
            if masks:
                self._run_tainted(op, masks)
            else:
                self._store(self._call(view))
                for ref in (*self.outputs, *self.changed):
                    set_taint(ref, CLEAN)
            if op.bad:
                self._tear_writes(op)

    def again(self, op: Op) -> Task:
        """For one replay of a captured graph: the same, with new random numbers."""
        renew = getattr(self.call, "renew", None)
        if renew is None:
            return self
        return Task(
            self.name,
            renew(),
            self.args,
            self.kwargs,
            self.reads,
            self.outputs,
            self.changed,
            self.report,
            pointwise=self.pointwise,
            widen=self.widen,
        )

    def _call(self, resolve: Callable[[Ref], torch.Tensor]) -> Any:
        if self.widen:
            narrow, resolve_narrow = self.outputs[0].geometry.dtype if self.outputs else None, resolve

            def resolve(ref: Ref) -> torch.Tensor:
                tensor = resolve_narrow(ref)
                return tensor.float() if tensor.dtype is narrow else tensor

        return self.call(*fill(self.args, resolve), **fill(self.kwargs, resolve))

    def _store(self, result: Any) -> None:
        if self.outputs:
            results = [
                r for r in (result if isinstance(result, (tuple, list)) else (result,)) if isinstance(r, torch.Tensor)
            ]
            for ref, value in zip(self.outputs, results, strict=True):
                if value.numel() or not ref.geometry.numel:  # statistics that only training needs come back empty
                    view(ref).copy_(value)

    def _masks(self, op: Op) -> dict[Ref, torch.Tensor]:
        """Per input that is tainted anywhere: which elements."""
        masks = {}
        for ref in self.reads:
            mask = taint_view(ref)
            torn = [key for space, key in op.bad or () if space is ref.space and meet(key, ref.key)]
            if torn:
                mask = mask.clone()
                for key in torn:
                    mark = torch.zeros(ref.space.size, dtype=torch.uint8)
                    mark_key(mark, key)
                    g = ref.geometry
                    mask[mark.as_strided(g.shape, [step * g.item for step in g.stride], ref.start) != 0] = TORN
            if mask.any():
                masks[ref] = mask.clone()
                if not torn and (mask == UNWRITTEN).any():
                    self.report(op, ref)
        return masks

    def _run_tainted(self, op: Op, masks: dict[Ref, torch.Tensor]) -> None:
        """Compute with NaN in place of what is tainted, then mark what depends on it."""
        saved = {ref: view(ref).clone() for ref in self.changed}

        def resolve(ref: Ref) -> torch.Tensor:
            tensor = view(ref)
            if ref in masks:
                if ref not in self.changed:
                    tensor = tensor.clone(memory_format=torch.preserve_format)
                poison(tensor, masks[ref]) if ref.geometry.dtype.is_floating_point else tensor.masked_fill_(
                    masks[ref] != 0, 0
                )
            return tensor

        try:
            self._store(self._call(resolve))
        except Exception:
            for ref, before in saved.items():
                view(ref).copy_(before)
            for ref in (*self.outputs, *self.changed):
                _mark(ref, None)
            return
        for ref in (*self.outputs, *self.changed):
            _mark(ref, self._dependent(ref, masks))

    def _dependent(self, out: Ref, masks: dict[Ref, torch.Tensor]) -> torch.Tensor | None:
        """Which elements of ``out`` depend on tainted ones; None: all."""

        def mask_of(ref: Ref) -> torch.Tensor:
            return (masks[ref] != 0) if ref in masks else torch.zeros(ref.geometry.shape, dtype=torch.bool)

        shape = out.geometry.shape
        try:
            if self.name == "where" and len(self.args) == 3:
                which, one, other = self.args
                picked = [
                    mask_of(a).expand(shape) if isinstance(a, Ref) else torch.zeros(shape, dtype=torch.bool)
                    for a in (one, other)
                ]
                return mask_of(which).expand(shape) | torch.where(view(which), *picked)
            if self.name in ("masked_fill", "masked_fill_"):
                source, which = self.args[:2]
                return mask_of(which).expand(shape) | (mask_of(source).expand(shape) & ~view(which))
            if self.name in ("zero_", "fill_"):
                return torch.zeros(shape, dtype=torch.bool)
            if self.name == "copy_" and isinstance(self.args[1], Ref):
                return mask_of(self.args[1]).expand(shape)
            if self.name in MOVES:
                return self._moved(masks, mask_of)
            if self.name in INDEXED_WRITES:
                return self._written(masks, mask_of)
            if self.pointwise:
                total = torch.zeros(shape, dtype=torch.bool)
                for ref in masks:
                    total |= mask_of(ref).expand(shape)
                return total
        except (RuntimeError, IndexError, TypeError, AttributeError, ValueError):
            return None
        floats = out.geometry.dtype.is_floating_point and all(ref.geometry.dtype.is_floating_point for ref in masks)
        return torch.isnan(view(out)) if floats and self.name not in SWALLOWS else None

    def _moved(self, masks: dict[Ref, torch.Tensor], mask_of: Callable[[Ref], torch.Tensor]) -> torch.Tensor:
        """The operator on the taint of its data; an element fetched through a tainted index is tainted."""

        def as_data(ref: Ref) -> torch.Tensor:
            if ref.geometry.dtype.is_floating_point or ref is first or self.name in ("cat", "stack"):
                return mask_of(ref).to(torch.float32)
            tensor = view(ref)
            return tensor.masked_fill(masks[ref] != 0, 0) if ref in masks else tensor

        first = next((ref for ref in refs_in(self.args)), None)
        kwargs = {key: value for key, value in self.kwargs.items() if key not in ("dtype",)}
        moved = self.call(*fill(self.args, as_data), **fill(kwargs, as_data)) != 0
        for ref in masks:
            if ref is not first and not ref.geometry.dtype.is_floating_point and self.name not in ("cat", "stack"):
                if self.name not in ("embedding", "gather"):
                    raise ValueError("an index is tainted")
                mask = mask_of(ref)
                moved = moved | (mask.unsqueeze(-1) if self.name == "embedding" else mask)
        return moved

    def _written(self, masks: dict[Ref, torch.Tensor], mask_of: Callable[[Ref], torch.Tensor]) -> torch.Tensor:
        """A write through an index: new taint where it wrote, the old one elsewhere."""
        first = next(iter(refs_in(self.args)))
        if any(
            ref is not first
            and not ref.geometry.dtype.is_floating_point
            and ref.geometry.dtype is not first.geometry.dtype
            for ref in masks
        ):
            raise ValueError("an index is tainted")
        target = mask_of(first).to(torch.float32)

        def as_data(ref: Ref) -> torch.Tensor:
            if ref is first:
                return target
            return mask_of(ref).to(torch.float32) if ref.geometry.dtype is first.geometry.dtype else view(ref)

        self.call(*fill(self.args, as_data), **fill(self.kwargs, as_data))
        return target != 0

    def _tear_writes(self, op: Op) -> None:
        """Two writers at once: nothing can be said about the bytes that both wrote."""
        for space, key in op.bad or ():
            for ref in (*self.outputs, *self.changed):
                if ref.space is space and meet(ref.key, key):
                    mark = torch.zeros(space.size, dtype=torch.uint8)
                    mark_key(mark, key)
                    g = ref.geometry
                    mask = mark.as_strided(g.shape, [step * g.item for step in g.stride], ref.start)
                    poison(view(ref), mask)
                    set_taint(ref, torch.where(mask != 0, torch.full_like(mask, TORN), taint_view(ref)))


def _mark(ref: Ref, mask: torch.Tensor | None) -> None:
    """Taint the elements in ``mask`` (None: all) of a result, and make them look it."""
    target = view(ref)
    if mask is None:
        poison(target)
        set_taint(ref, DERIVED)
    else:
        poison(target, mask)
        set_taint(ref, mask.to(torch.uint8) * DERIVED)
