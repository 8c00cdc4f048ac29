"""Small matrices whose products are exact in float32, so that a right result is right to the last bit."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from .defaults import usual_defaults
from .device import WIDTH

if TYPE_CHECKING:
    import torch


def permutation(seed: int) -> torch.Tensor:
    """A (WIDTH, WIDTH) float32 permutation matrix on the host: products with it only move entries."""
    return _permutation(seed).clone()


def counting(seed: int, most: int = 100) -> torch.Tensor:
    """A (WIDTH, WIDTH) float32 matrix of whole numbers from 1 on, below ``most``, different for every seed."""
    return _counting(seed, most).clone()


@lru_cache(maxsize=64)
@usual_defaults()
def _permutation(seed: int) -> torch.Tensor:
    import torch

    order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(seed))
    return torch.eye(WIDTH)[order]


@lru_cache(maxsize=64)
@usual_defaults()
def _counting(seed: int, most: int) -> torch.Tensor:
    import torch

    return torch.randint(1, most, (WIDTH, WIDTH), generator=torch.Generator().manual_seed(seed)).float()


def kind_of(value: Any) -> str:
    """What a learner returned, in words."""
    import torch

    return "a tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def digest_on_gpu(value: Any) -> float | str:
    """The digest of a tensor on the GPU; what it is instead, in words, for anything else."""
    import torch

    if isinstance(value, torch.Tensor) and not value.is_cuda:
        return "a tensor on the CPU"
    if isinstance(value, torch.Tensor) and (value.shape != (WIDTH, WIDTH) or value.dtype != torch.float32):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    return digest(value)


def digest(value: Any) -> float | str:
    """A number up to a million for a matrix, another when an entry differs (almost surely); "nan" if one is NaN.

    Weighted sums of whole numbers below 2^53 are exact in float64.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return kind_of(value)
    flat = value.detach().cpu().double().flatten()
    total = float((flat * _weights(flat.numel())).sum())
    return "nan" if total != total else total % 1_000_003


@lru_cache(maxsize=8)
@usual_defaults()
def _weights(count: int) -> torch.Tensor:
    """Without a pattern: permutations differ, too."""
    import torch

    draw = torch.Generator().manual_seed(count)
    return torch.randint(1, 1_000_000, (count,), generator=draw).double()
