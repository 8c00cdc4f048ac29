"""Rotary positions (RoPE, https://arxiv.org/abs/2104.09864) as one product with a matrix per row."""

from __future__ import annotations

import math

import torch

from .config import Config


def frequencies(config: Config) -> torch.Tensor:
    """Radians per token of each pair of numbers of a head, float64 (dim / 2,), on the CPU."""
    steps = torch.arange(config.dim // 2, dtype=torch.float64, device="cpu")
    turns = config.rope_theta ** (-2 * steps / config.dim)
    if (stretch := config.stretch) is None:
        return turns
    wavelengths = 2 * math.pi / turns
    kept = (stretch.original / wavelengths - stretch.low) / (stretch.high - stretch.low)
    kept = kept.clamp(0, 1)                 # 1: a short wave, as it is; 0: a long one, all of the factor
    return turns * (kept + (1 - kept) / stretch.factor)


class Rotary:
    """Matrices that turn the heads of a row to its position.

    The pairs are (i, i + dim / 2). A head times a (dim, dim) matrix is one batched product where element by element it
    would be three kernels or more, and a decode step has too little to do for launches that could be saved.
    """

    def __init__(self, config: Config, cells: int, dtype: torch.dtype, device: torch.device | str):
        half, dim = config.dim // 2, config.dim
        angles = torch.outer(torch.arange(cells, dtype=torch.float64, device="cpu"), frequencies(config)).repeat(1, 2)
        swap = torch.zeros(dim, dim, dtype=dtype, device="cpu")
        swap[range(half), range(half, dim)] = 1.0           # the second of a pair gets + first · sin
        swap[range(half, dim), range(half)] = -1.0          # the first gets − second · sin
        self.cos, self.sin = (table.to(dtype).to(device) for table in (angles.cos(), angles.sin()))   # (cells, dim)
        self.same, self.swap = torch.eye(dim, dtype=dtype, device="cpu").to(device), swap.to(device)

    def at(self, positions: torch.Tensor) -> torch.Tensor:
        """int64 (rows,) -> (rows, dim, dim)."""
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]       # (rows, 1, dim)
        return torch.addcmul(self.same * cos, self.swap, sin)
