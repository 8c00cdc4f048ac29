"""Sizes of a decoder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stretch:
    """Llama 3.1's rotary frequencies for contexts longer than those of its first training.

    Wavelengths shorter than ``original / high`` tokens stay, those longer than ``original / low`` grow by ``factor``,
    and between the two it goes over smoothly (rope_type "llama3" in https://huggingface.co/docs/transformers).
    """

    factor: float
    low: float
    high: float
    original: int


@dataclass(frozen=True)
class Config:
    """Sizes of a decoder; ValueError for those that do not fit together.

    ``words`` in the vocabulary, ``width`` of the residual, ``dim`` of a head, ``hidden`` width of the gated MLP;
    ``tied``: the embedding is the output matrix, too; ``qkv_bias`` as in Qwen2, ``qk_norm`` as in Qwen3.
    """

    words: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    dim: int
    hidden: int
    rope_theta: float = 500_000.0
    stretch: Stretch | None = None
    eps: float = 1e-5
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        for name in ("words", "width", "layers", "heads", "kv_heads", "dim", "hidden"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number from 1 up, not {value!r}")
        if self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads cannot share {self.kv_heads} kv_heads evenly")
        if self.dim % 2:
            raise ValueError(f"dim of a head must be even for rotary positions, not {self.dim}")

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads

    @property
    def row_numbers(self) -> int:
        """Numbers that a token leaves in the cache, over all layers."""
        return self.layers * 2 * self.kv_heads * self.dim


# https://huggingface.co/meta-llama/Meta-Llama-3-8B/blob/main/config.json
LLAMA_3_8B = Config(words=128_256, width=4096, layers=32, heads=32, kv_heads=8, dim=128, hidden=14_336)
TINY = Config(words=64, width=64, layers=2, heads=4, kv_heads=2, dim=16, hidden=96)
