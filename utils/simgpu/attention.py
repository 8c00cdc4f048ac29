"""Scaled dot product attention: one kernel, with a mask in memory, with a causal one that nobody builds, or with none.

A causal mask is told by its alignment, as PyTorch does it (torch/nn/attention/bias.py): ``is_causal=True`` and
``causal_upper_left`` let query i see keys 0 … i, ``causal_lower_right`` all but the last T - 1 - i of S keys. Flash
attention, which PyTorch calls for the latter, goes by the T queries and S keys that it is given, not by the numbers
in the bias. Where PyTorch finds no fused kernel (inputs that do not have 4 dimensions; in some versions float32 with
grouped heads) it builds a mask after all; the simulated device always has a fused one.
"""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any

import torch

from .geometry import Geometry, dense
from .ops import Unsupported

NAME = "scaled_dot_product_attention"
OPERATOR = torch.ops.aten.scaled_dot_product_attention.default
WORDS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")    # what may come by position


class Causal(Enum):
    """What ``is_causal`` may be besides False, and True for the upper left."""

    LOWER_RIGHT = "lower right"


# the call


def bias_in(args: tuple, kwargs: dict[str, Any]) -> Any:
    """The ``CausalBias`` among the arguments of a call; None when there is none."""
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    return mask if is_bias(mask) else None


def is_bias(value: Any) -> bool:
    """Whether this is a ``CausalBias``, without importing its module, which takes a second."""
    home = sys.modules.get("torch.nn.attention.bias")
    return home is not None and isinstance(value, home.CausalBias)


def refuse_bias(tensor: Any) -> None:
    """A bias is no data: a copy of it has lost what it means, on CUDA as well."""
    if is_bias(tensor):
        raise Unsupported(
            "a CausalBias has no elements to move to cuda:0: give it to scaled_dot_product_attention as it is; it "
            "works with queries and keys of any device"
        )


def without_bias(bias: Any, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the same call, by keyword, with the alignment of ``bias`` in place of a mask."""
    given = dict(zip(WORDS, args, strict=False)) | kwargs
    if given.get("is_causal"):
        raise ValueError("CausalBias should not be used with causal=True: it is causal already, leave is_causal out")
    if (alignment := alignment_of(bias)) is Causal.LOWER_RIGHT:
        _refuse_misfits([given[word] for word in WORDS[:3]])
    return given | {"attn_mask": None, "is_causal": alignment}


def alignment_of(bias: Any) -> bool | Causal:
    """Where the triangle of a bias stands; a square one is taken for ``is_causal=True``, as PyTorch does."""
    variants = sys.modules["torch.nn.attention.bias"].CausalVariant
    if bias.variant not in tuple(variants):
        raise ValueError(f"CausalBias.variant must be a CausalVariant, but found: {bias.variant!r}")
    square = bias.seq_len_q == bias.seq_len_kv
    return True if square or bias.variant == variants.UPPER_LEFT else Causal.LOWER_RIGHT


def _refuse_misfits(tensors: list[torch.Tensor]) -> None:
    for what, found in (
        ("the same dtype", [t.dtype for t in tensors]), ("one device", [t.device.type for t in tensors])
    ):
        if len(set(found)) > 1:
            raise ValueError(f"{NAME}: query, key and value must have {what}, but got {', '.join(map(str, found))}")
    if min(t.dim() for t in tensors) < 2:
        raise ValueError(
            f"{NAME}: query, key and value must have 2 or more dimensions, but got {[t.dim() for t in tensors]}"
        )


def misleading(bias: Any, query: torch.Tensor, key: torch.Tensor) -> str | None:
    """What to say when a lower right bias was made for other lengths than it is used with; None when all is well."""
    made, used = (bias.seq_len_q, bias.seq_len_kv), (query.shape[-2], key.shape[-2])
    if made == used or bias.variant == sys.modules["torch.nn.attention.bias"].CausalVariant.UPPER_LEFT:
        return None
    what = (
        "PyTorch takes a square one for is_causal=True, which is aligned to the upper left"
        if made[0] == made[1]
        else "the fused kernel goes by the tensors, where PyTorch builds the mask (as on the CPU) this fails"
    )
    return (
        f"causal_lower_right({made[0]}, {made[1]}) was used with {used[0]} queries and {used[1]} keys: {what}; make it "
        f"with causal_lower_right({used[0]}, {used[1]})"
    )


# shapes and work


def result_of(
    query: Geometry, key: Geometry, value: Geometry, mask: Geometry | None = None, *, grouped: bool
) -> Geometry:
    """Geometry of the output (…, T, Ev); RuntimeError when the inputs do not fit."""
    shapes = [g.shape for g in (query, key, value)]
    fits = min(map(len, shapes)) >= 2 and shapes[0][-1] == shapes[1][-1] and shapes[1][-2] == shapes[2][-2]
    try:
        if not fits:
            raise RuntimeError
        batches = [shape[:-2] for shape in shapes]
        if grouped:     # each key head serves several query heads
            heads = [batch[-1] for batch in batches]
            if any(heads[0] % count for count in heads[1:]):
                raise RuntimeError
            batches = [(*batch[:-1], heads[0]) for batch in batches]
        batch = torch.broadcast_shapes(*batches)
        if mask is not None:
            scores = (*batch, shapes[0][-2], shapes[1][-2])
            if torch.broadcast_shapes(scores, mask.shape) != scores:
                raise RuntimeError
    except (RuntimeError, IndexError):
        raise RuntimeError(
            f"{NAME}: query {shapes[0]}, key {shapes[1]} and value {shapes[2]}"
            f"{f' and attn_mask {mask.shape}' if mask is not None else ''} do not fit"
        ) from None
    return dense((*batch, shapes[0][-2], shapes[2][-1]), query.dtype)


def causal_in(args: Any, kwargs: dict[str, Any]) -> bool | Causal:
    """The causal mask of a call of the operator."""
    return args[5] if len(args) > 5 else kwargs.get("is_causal", False)


def pairs(queries: int, keys: int, causal: bool | Causal) -> int:
    """How many (query, key) pairs a mask leaves: all, or those on and below the diagonal from its corner."""
    if not causal:
        return queries * keys
    side = min(queries, keys)
    rest = queries - side if causal is True else keys - side    # below the triangle, or left of it
    return side * (side + 1) // 2 + side * rest


def flops_of(query: Geometry, key: Geometry, out: Geometry, causal: bool | Causal) -> float:
    """Two products per head, queries × keys and weights × values, for the pairs that the mask leaves."""
    queries, keys = query.shape[-2], key.shape[-2]
    heads = out.numel // max(queries * out.shape[-1], 1)
    return 2.0 * heads * pairs(queries, keys, causal) * (query.shape[-1] + out.shape[-1])


# values


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool | Causal = False, **kwargs: Any,
) -> torch.Tensor:
    """The operator on CPU tensors, which has no lower right triangle: a mask, for as long as it computes."""
    if is_causal is Causal.LOWER_RIGHT:
        queries, keys = query.shape[-2], key.shape[-2]
        attn_mask, is_causal = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries), False
    return OPERATOR(query, key, value, attn_mask, dropout_p, is_causal, **kwargs)
