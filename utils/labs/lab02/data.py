"""Small matrices whose products are exact in float32, so that a right result is right to the last bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..device import WIDTH

if TYPE_CHECKING:
    import torch


def permutation(seed: int) -> torch.Tensor:
    """A (WIDTH, WIDTH) float32 permutation matrix on the host: products with it only move entries."""
    import torch

    order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(seed))
    return torch.eye(WIDTH)[order]


def counting(seed: int) -> torch.Tensor:
    """A (WIDTH, WIDTH) float32 matrix of small whole numbers on the host, different for every seed."""
    import torch

    return torch.randint(1, 100, (WIDTH, WIDTH), generator=torch.Generator().manual_seed(seed)).float()


def digest(value: Any) -> float | str:
    """One number for a matrix that differs when any entry does (almost surely); "nan" when something was not written.

    Weighted sums of whole numbers below 2^53 are exact in float64.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    flat = value.detach().cpu().double().flatten()
    weights = torch.arange(1, flat.numel() + 1, dtype=torch.float64)
    total = float((flat * weights).sum())
    return "nan" if total != total else total
