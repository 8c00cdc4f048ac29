"""Operators with their own rules: copies, reads, and what is refused."""

from __future__ import annotations

from typing import Any

import torch

from . import copies
from .geometry import dense, geometry
from .ops import Unsupported
from .tensor import SimTensor, new_tensor

aten = torch.ops.aten


def _copy_(func: Any, args: tuple, kwargs: dict) -> Any:
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    return copies.copy_into(args[0], args[1], bool(non_blocking))


def _is_set_to(func: Any, args: tuple, kwargs: dict) -> bool:
    one, other = args
    return isinstance(one, SimTensor) and isinstance(other, SimTensor) and (
        one.place == other.place and one.geometry is other.geometry
    )


def _to_copy(func: Any, args: tuple, kwargs: dict) -> Any:
    device = kwargs.get("device")
    if device is not None and device.type == "meta":
        device = None   # a composite operator asked for the device that PyTorch sees
    return copies.converted(
        args[0],
        device,
        kwargs.get("dtype"),
        bool(kwargs.get("non_blocking")),
        kwargs.get("memory_format"),
        copy=True,
        pin=bool(kwargs.get("pin_memory")),
    )


def _item(func: Any, args: tuple, kwargs: dict) -> Any:
    return copies.to_host(args[0]).item()


def _equal(func: Any, args: tuple, kwargs: dict) -> bool:
    one, other = args
    _no_mixed("equal", one, other)
    if one.place == other.place and one.geometry is other.geometry:
        return True  # the same bytes: known without looking
    return torch.equal(copies.to_host(one), copies.to_host(other))


def _nonzero_flag(func: Any, args: tuple, kwargs: dict) -> bool:
    return bool(copies.to_host(args[0]).item())


def _allclose(func: Any, args: tuple, kwargs: dict) -> bool:
    one, other, *rest = args
    _no_mixed("allclose", one, other)
    return torch.allclose(copies.to_host(one), copies.to_host(other), *rest, **kwargs)


def _record_stream(func: Any, args: tuple, kwargs: dict) -> None:
    args[0].record_stream(args[1])


def _where(func: Any, args: tuple, kwargs: dict) -> Any:
    """Numbers among the values: each as a scalar of the dtype that the result gets."""
    words = ("input", "condition", "other") if func is torch.Tensor.where else ("condition", "input", "other")
    given = dict(zip(words, args, strict=False)) | kwargs
    if set(given) != {"condition", "input", "other"}:
        return NotImplemented
    which, *values = (given[word] for word in ("condition", "input", "other"))
    if all(isinstance(value, torch.Tensor) for value in values):
        return NotImplemented
    probes = [torch.empty(v.shape, dtype=v.dtype, device="meta") if isinstance(v, torch.Tensor) else v for v in values]
    dtype = torch.result_type(*probes)
    values = [v if isinstance(v, torch.Tensor) else torch.tensor(v, dtype=dtype, device="cpu") for v in values]
    return aten.where.self(which, *values)


def _matmul(func: Any, args: tuple, kwargs: dict) -> Any:
    if len(args) != 2 or kwargs:
        return NotImplemented
    one, other = args
    _no_mixed("matmul", one, other)
    dims = one.dim(), other.dim()
    if dims == (2, 2):      # what PyTorch does, without its detour through Python in inference mode
        return aten.mm.default(one, other)
    if dims != (1, 2):
        return NotImplemented
    return one.unsqueeze(0).mm(other).squeeze(0)    # PyTorch squeezes in place, which is not modelled


def _cosine(x1: SimTensor, x2: SimTensor, dim: int = 1, eps: float = 1e-8) -> SimTensor:
    lengths = [torch.linalg.vector_norm(x, 2, dim, True).clamp_min(eps) for x in (x1, x2)]
    return (x1 / lengths[0] * (x2 / lengths[1])).sum(dim)


def _foreach_copy(func: Any, args: tuple, kwargs: dict) -> None:
    targets, sources, *rest = args
    for target, source in zip(targets, sources, strict=True):
        copies.copy_into(target, source, bool(rest[0] if rest else kwargs.get("non_blocking", False)))


def _no_mixed(name: str, *tensors: Any) -> None:
    if not all(isinstance(t, SimTensor) for t in tensors):
        raise RuntimeError(
            f"{name}: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        )


def _reshape_alias(func: Any, args: tuple, kwargs: dict) -> SimTensor:
    base, size, stride = args
    return new_tensor(base.memory, base.start, geometry(tuple(size), tuple(stride), base.geometry.dtype), base)


def _one_hot(func: Any, args: tuple, kwargs: dict) -> SimTensor:
    index = args[0]
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    if classes == -1:
        classes = int(copies.to_host(index).max()) + 1
    steps = index.memory.device.factory("arange", dense((classes,), torch.int64), lambda: torch.arange(classes))
    return (index.unsqueeze(-1) == steps).to(torch.int64)


def _refuse(name: str, advice: str) -> Any:
    def refuse(func: Any, args: tuple, kwargs: dict) -> Any:
        raise Unsupported(f"{name} is not modelled by the simulated device; {advice}")

    return refuse


_NAMED = {      # the operator that PyTorch reaches -> what was called, and what to do instead
    "_conj": ("a conjugate view of a complex tensor", "use torch.conj_physical(x), which copies"),
    "_neg_view": ("a negative view of a complex tensor", "use -x.imag.clone()"),
    "_cudnn_rnn_flatten_weight": ("a recurrent layer (LSTM, GRU, RNN)", "run it on the CPU, or write its steps"),
    "_cudnn_rnn": ("a recurrent layer (LSTM, GRU, RNN)", "run it on the CPU, or write its steps"),
    "_embedding_bag": ("embedding_bag", "use embedding and a sum or mean"),
    "_embedding_bag_forward_only": ("embedding_bag", "use embedding and a sum or mean"),
}
_PYTHON = "use other operators, or run this part on the CPU"
COMPOSITES_REFUSED = (
    "quantile", "nanquantile", "cov", "corrcoef", "vander", "linalg_vander", "combinations", "frexp", "lstm", "gru",
    "rnn_tanh", "rnn_relu", "embedding_bag", "cartesian_prod",
)
_IN_PLACE_VIEWS = (
    "t_", "transpose_", "unsqueeze_", "squeeze_", "swapaxes_", "swapdims_", "as_strided_", "resize_as_",
)


SPECIAL = {
    **{name: _refuse(what, advice) for name, (what, advice) in _NAMED.items()},
    **{name: _refuse(name, _PYTHON) for name in COMPOSITES_REFUSED},
    **{name: _refuse(f"Tensor.{name}", f"use x = x.{name[:-1]}(...)") for name in _IN_PLACE_VIEWS},
    "is_set_to": _is_set_to,
    "where": _where,
    "matmul": _matmul,
    "__matmul__": _matmul,
    "cosine_similarity": lambda func, args, kwargs: _cosine(*args, **kwargs),
    "_foreach_copy_": _foreach_copy,
    "copy_": _copy_,
    "_to_copy": _to_copy,
    "_local_scalar_dense": _item,
    "item": _item,
    "equal": _equal,
    "is_nonzero": _nonzero_flag,
    "allclose": _allclose,
    "record_stream": _record_stream,
    "one_hot": _one_hot,
    "_reshape_alias": _reshape_alias,
    "_has_compatible_shallow_copy_type": lambda func, args, kwargs: all(isinstance(a, SimTensor) for a in args),
    "set_": _refuse("Tensor.set_", "assign views or new tensors instead"),
    "resize_": _refuse("Tensor.resize_", "allocate a tensor of the size you need"),
    "_pin_memory": _refuse("pin_memory of a CUDA tensor", "only CPU tensors can be pinned"),
}
