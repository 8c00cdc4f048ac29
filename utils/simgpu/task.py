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
from .taint import COMPARED, SUBSTITUTE, dependent
from .values import (
    CLEAN,
    DERIVED,
    TORN,
    UNWRITTEN,
    Ref,
    fill,
    is_tainted,
    mark_key,
    plain_torch,
    poison,
    set_taint,
    taint_view,
    untold,
    view,
)


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
            torn = op.bad and [key for space, key in op.bad if space is ref.space and meet(key, ref.key)]
            if not torn and not is_tainted(ref):
                continue
            mask = taint_view(ref)
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
                tensor.masked_fill_(untold(masks[ref], tensor.dtype), _stand_in(self, ref))
            return tensor

        try:
            self._store(self._call(resolve))
        except Exception:
            for ref, before in saved.items():
                view(ref).copy_(before)
            for ref in (*self.outputs, *self.changed):
                poison(view(ref))
                set_taint(ref, DERIVED)
            return
        for ref in (*self.outputs, *self.changed):
            _mark(ref, dependent(self, ref, masks), COMPARED.get(self.name.rstrip("_")))

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


def _stand_in(task: Task, ref: Ref) -> float:
    """What an operator computes with in place of a tainted element: NaN, a divisor, or an index that always exists."""
    dtype = ref.geometry.dtype
    if dtype.is_floating_point or dtype.is_complex:
        return SUBSTITUTE.get(task.name, float("nan"))
    return 1 if task.pointwise else 0


def _mark(ref: Ref, mask: torch.Tensor | None, compared: bool | None) -> None:
    """Taint the elements in ``mask`` (None: all) of a result, and make them look it; no truth value can.

    So these stay what they came out as, and a comparison says what it says of NaN: ``(y == x).all()`` is False.
    """
    if mask is None:
        mask = torch.ones(ref.geometry.shape, dtype=torch.bool)
    if ref.geometry.dtype is not torch.bool:
        poison(view(ref), mask)
    elif compared is not None:
        view(ref).masked_fill_(mask, compared)
    set_taint(ref, mask.to(torch.uint8) * DERIVED)
