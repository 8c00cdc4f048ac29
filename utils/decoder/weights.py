"""The matrices of a decoder, those that read the same input side by side in one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .config import Config


@dataclass
class Layer:
    """Matrices as (out, in); query heads in the order (group, kv_heads), where checkpoints have (kv_heads, group).

    So attention, whose sequence the group is, hands its result on as it lies in memory.
    """

    attention_norm: torch.Tensor            # (width,)
    qkv: torch.Tensor                       # ((heads + 2 · kv_heads) · dim, width)
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None             # (dim,)
    k_norm: torch.Tensor | None
    out: torch.Tensor                       # (width, heads · dim), inputs in the order of query heads
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor                   # (2 · hidden, width)
    down: torch.Tensor                      # (width, hidden)


@dataclass
class Weights:
    embed: torch.Tensor                     # (words, width)
    layers: list[Layer]
    norm: torch.Tensor
    head: torch.Tensor                      # (words, width); the embedding itself when tied

    def tensors(self) -> Iterator[torch.Tensor]:
        """Each once."""
        yield from (self.embed, self.norm)
        if self.head is not self.embed:
            yield self.head
        for layer in self.layers:
            yield from (tensor for tensor in vars(layer).values() if tensor is not None)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())

    @property
    def step_nbytes(self) -> int:
        """Bytes that a decode step has to read: all but an embedding that is not tied, of which it picks a few rows."""
        return self.nbytes - (0 if self.head is self.embed else self.embed.nbytes)


def empty(config: Config, dtype: torch.dtype, device: torch.device | str) -> Weights:
    """Not filled yet."""
    def new(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    width, dim, rows = config.width, config.dim, (config.heads + 2 * config.kv_heads) * config.dim
    layers = [
        Layer(
            attention_norm=new(width), qkv=new(rows, width), qkv_bias=new(rows) if config.qkv_bias else None,
            q_norm=new(dim) if config.qk_norm else None, k_norm=new(dim) if config.qk_norm else None,
            out=new(width, config.heads * dim), mlp_norm=new(width), gate_up=new(2 * config.hidden, width),
            down=new(width, config.hidden),
        )
        for _ in range(config.layers)
    ]
    embed = new(config.words, width)
    return Weights(embed, layers, new(width), embed if config.tied else new(config.words, width))


def random(config: Config, dtype: torch.dtype, device: torch.device | str, seed: int) -> Weights:
    """Drawn where they will be; the same seed gives the same numbers on the same kind of device.

    Matrices have variance 1 / inputs, and those that add to the residual 1 / (2 · layers) of it, so that every number
    on the way stays near 1; norms are near 1, and biases small.
    """
    weights, generator = empty(config, dtype, device), torch.Generator(device).manual_seed(seed)
    added = {id(matrix) for layer in weights.layers for matrix in (layer.out, layer.down)}
    for tensor in weights.tensors():
        if tensor.dim() == 2:
            share = 2 * config.layers if id(tensor) in added else 1
            tensor.normal_(0.0, (tensor.shape[1] * share) ** -0.5, generator=generator)
        else:
            tensor.normal_(1.0, 0.1, generator=generator)
    for layer in weights.layers:
        if layer.qkv_bias is not None:
            layer.qkv_bias.sub_(1.0)
    return weights
