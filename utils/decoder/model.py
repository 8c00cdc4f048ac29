"""The decoder: rows of any slots and positions in, what follows each of them out."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from . import fused
from . import weights as made
from .attention import Cache, OneEach, Tiles, round_up
from .config import Config
from .rotary import Rotary
from .weights import Layer, Weights


class SlotDecoder:
    """Weights, a KV cache by request slot, and the step over rows of tokens.

    ``slots`` requests, each with up to ``cells`` tokens. Random weights by ``seed`` unless ``weights`` are given. A row
    is a token, its slot and its position there; the row of position p reads the slot's cells 0 … p, so whoever fills a
    slot from position 0 on never sees what was there before (cells beyond p count with weight 0: of them only NaN and
    infinity would show). Position −1 is padding: its result means nothing, and it changes no slot. The rows of a step
    may come in any order, as all of them are written before any is read.

    Nothing waits for the device, and all shapes follow from the number of rows and ``upto``, so a step can be captured
    in a CUDA graph. ``upto``, a number on the host, says that no position of the step is beyond the first so many cells
    (rounded up to a multiple of 16); less is read then. Positions and slots out of range cannot be noticed without
    waiting: what they give is undefined.
    """

    spare = True            # there is a place for padding rows

    def __init__(
        self, config: Config, slots: int, cells: int, dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cuda", seed: int = 0, weights: Weights | None = None,
    ):
        if min(slots, cells) < 1:
            raise ValueError(f"{slots} slots of {cells} cells: at least one of each is needed")
        self.config, self.slots, self.length = config, slots, cells      # length: tokens that fit into a slot
        with torch.inference_mode(False), torch.no_grad():      # so that whoever likes may write to them, in any mode
            self.weights = weights or made.random(config, dtype, device, seed)
            self.cache = Cache(config, slots, cells, dtype, device)
            self.rotary = Rotary(config, self.cache.keys.shape[3], dtype, device)
        self.fused = fused.possible(config, slots, self.weights.embed)       # False: operators of PyTorch alone

    # ---- what a server calls

    def __call__(
        self, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, upto: int | None = None
    ) -> torch.Tensor:
        """Three int64 (rows,), any rows -> the greedy next token after each row, int64 (rows,)."""
        return self._scores(Tiles, tokens, slots, positions, upto).argmax(-1)

    def decode(
        self, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, upto: int | None = None
    ) -> torch.Tensor:
        """The same for rows of slots that all differ (padding rows aside), in any order; reads the cache in place."""
        scores = self._scores(OneEach, tokens, slots, positions, upto)
        return fused.greedy(scores) if self.fused else scores.argmax(-1)

    def logits(
        self, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, upto: int | None = None,
        one_each: bool = False,
    ) -> torch.Tensor:
        """What the next tokens are chosen by, float32 (rows, words); ``one_each``: as ``decode`` does it."""
        return self._scores(OneEach if one_each else Tiles, tokens, slots, positions, upto).float()

    def step_nbytes(self, upto: int | None = None) -> int:
        """Bytes that ``decode`` has to read: the weights, and ``upto`` cells (all, if None) of every slot."""
        cells = self.length if upto is None else upto
        return self.weights.step_nbytes + self.slots * cells * self.config.row_numbers * self.cache.keys.itemsize

    # ---- a step

    @torch.inference_mode()
    def _scores(
        self, way: type[OneEach] | type[Tiles], tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor,
        upto: int | None,
    ) -> torch.Tensor:
        self._check(tokens, slots, positions, one_each=way is OneEach)
        rows = way(self.cache, slots, positions, self._width(upto))
        x = F.embedding(rows.tokens_of(tokens), self.weights.embed)
        if self.fused and way is OneEach:
            return F.linear(rows.asked(fused.hidden(self, x, rows)), self.weights.head)
        turn = self.rotary.at(rows.positions)
        for number, layer in enumerate(self.weights.layers):
            self._attention(number, layer, x, turn, rows)
            self._mlp(layer, x)
        x = F.rms_norm(rows.asked(x), (self.config.width,), self.weights.norm, self.config.eps)
        return F.linear(x, self.weights.head)

    def _attention(
        self, number: int, layer: Layer, x: torch.Tensor, turn: torch.Tensor, rows: OneEach | Tiles
    ) -> None:
        """Add to x (rows, width) what its rows see."""
        config, turned = self.config, self.config.heads + self.config.kv_heads
        h = F.rms_norm(x, (config.width,), layer.attention_norm, config.eps)
        qkv = F.linear(h, layer.qkv, layer.qkv_bias).view(len(x), -1, config.dim)
        qk, v = qkv[:, :turned], qkv[:, turned:]
        if layer.q_norm is not None:
            q, k = qk.split([config.heads, config.kv_heads], 1)
            qk = torch.cat([F.rms_norm(part, (config.dim,), norm, config.eps)
                            for part, norm in ((q, layer.q_norm), (k, layer.k_norm))], 1)
        q, k = torch.bmm(qk, turn).split([config.heads, config.kv_heads], 1)
        self.cache.write(number, rows.slots, rows.positions, k, v)
        seen = rows.attend(number, q.unflatten(1, (config.group, config.kv_heads)))
        x.addmm_(seen, layer.out.t())               # in place, which adds without a copy of x

    def _mlp(self, layer: Layer, x: torch.Tensor) -> None:
        h = F.rms_norm(x, (self.config.width,), layer.mlp_norm, self.config.eps)
        gate, up = F.linear(h, layer.gate_up).chunk(2, -1)
        x.addmm_(F.silu(gate).mul_(up), layer.down.t())

    # ---- what can be checked without waiting

    def _width(self, upto: int | None) -> int:
        if upto is None:
            return round_up(self.length)
        if not 1 <= upto <= self.length:
            raise ValueError(f"upto {upto}: a slot has {self.length} cells")
        return round_up(upto)

    def _check(self, tokens: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, one_each: bool) -> None:
        shapes = {name: (tuple(rows.shape), rows.dtype)
                  for name, rows in (("tokens", tokens), ("slots", slots), ("positions", positions))}
        if set(shapes.values()) != {((len(tokens),), torch.int64)} or not len(tokens):
            raise ValueError(f"tokens, slots and positions must be int64 of one length, from 1 up, not {shapes}")
        if one_each and len(tokens) > self.slots:
            raise ValueError(f"{len(tokens)} rows cannot be of different slots: there are {self.slots}")
