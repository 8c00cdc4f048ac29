"""Attention of a step's rows over the cells of their slots, in two ways that differ in what a step may consist of.

Both have the rows in an order of their own (``tokens_of``, ``positions``), write all of them before they read, and give
back the rows that were asked for (``asked``). What a row is and where it goes is on the device alone: nothing here
waits for it, and all shapes follow from the number of rows.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .config import Config

TILE = 16               # rows of one slot that go through one attention: with 4 query heads per key head, 64 queries


class Cache:
    """Keys and values (layers, slots, kv_heads, cells + spare, dim), zeros at first.

    The last cell is nobody's: position −1, that of a padding row, is there. The number of cells is a multiple of 16,
    as the fused attention wants its mask.
    """

    def __init__(self, config: Config, slots: int, cells: int, dtype: torch.dtype, device: torch.device | str):
        shape = (config.layers, slots, config.kv_heads, round_up(cells + 1), config.dim)
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self.places = torch.arange(shape[3], device=device)
        self.numbers, self.group = torch.arange(slots, device=device), config.group

    def write(self, layer: int, slots: torch.Tensor, positions: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """k, v (rows, kv_heads, dim)."""
        self.keys[layer][slots, :, positions] = k
        self.values[layer][slots, :, positions] = v

    def hidden_from(self, positions: torch.Tensor, upto: int) -> torch.Tensor:
        """Of each position, what to add to the scores of its cells: 0 up to its own, −inf beyond; (..., upto)."""
        beyond = self.places[:upto] > positions.clamp_min(0)[..., None]
        return torch.zeros(beyond.shape, dtype=self.keys.dtype, device=beyond.device).masked_fill_(beyond, -torch.inf)


def round_up(cells: int, to: int = 16) -> int:
    return -(-cells // to) * to


class OneEach:
    """Rows of slots that all differ: one row for every slot, in the order of slots, and the cache is read in place.

    Slots without a row get one of padding. Reads the first ``upto`` cells of every slot once, and moves nothing.
    """

    def __init__(self, cache: Cache, slots: torch.Tensor, positions: torch.Tensor, upto: int):
        self.cache, self.upto, self.slots, self.rows = cache, upto, cache.numbers, slots
        nobody = len(cache.numbers)
        self.targets = slots.masked_fill(positions < 0, nobody)                # a padding row is no slot's row
        self.positions = self._by_slot(positions, -1)
        self.mask = cache.hidden_from(self.positions, upto)[:, None, None]              # (slots, 1, 1, upto)

    def _by_slot(self, values: torch.Tensor, otherwise: int) -> torch.Tensor:
        found = torch.full((len(self.slots) + 1,), otherwise, dtype=values.dtype, device=values.device)
        found[self.targets] = values
        return found[:-1]

    def tokens_of(self, tokens: torch.Tensor) -> torch.Tensor:
        return self._by_slot(tokens, 0)

    def asked(self, x: torch.Tensor) -> torch.Tensor:
        return x[self.rows]

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """q (slots, group, kv_heads, dim) -> (slots, heads · dim)."""
        k, v = (part[layer, :, :, :self.upto] for part in (self.cache.keys, self.cache.values))
        return _attend(q, k, v, self.mask).flatten(1)


class Tiles:
    """Any rows: up to 16 of one slot make a tile, and a tile reads a copy of the first ``upto`` cells of its slot.

    A tile per row would copy 16 times as much for a long piece of a prompt. There are at most as many tiles as
    min(rows, slots) + rows / 16, whatever the rows are; those too many read slot 0, and nobody reads them.
    """

    def __init__(self, cache: Cache, slots: torch.Tensor, positions: torch.Tensor, upto: int):
        self.cache, self.upto, self.slots, self.positions = cache, upto, slots, positions
        rows, device = len(slots), slots.device
        here = slots[:, None] == cache.numbers                                          # (rows, slots)
        before = here.cumsum(0).gather(1, slots[:, None])[:, 0] - 1                     # earlier rows of the same slot
        needed = (here.sum(0) + TILE - 1) // TILE                                       # tiles of each slot
        self.tile = (needed.cumsum(0) - needed)[slots] + before // TILE                 # of each row
        self.place = before % TILE                                                      # and its place there
        tiles = min(rows, len(cache.numbers)) + rows // TILE
        self.slot_of_tile = torch.zeros(tiles, dtype=torch.int64, device=device)
        self.slot_of_tile[self.tile] = slots
        self.row_at = torch.zeros(tiles, TILE, dtype=torch.int64, device=device)
        self.row_at[self.tile, self.place] = torch.arange(rows, device=device)
        hidden, group = cache.hidden_from(positions[self.row_at], upto), cache.group
        self.mask = hidden[:, :, None].expand(-1, -1, group, -1).reshape(tiles, 1, TILE * group, upto)

    def tokens_of(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens

    def asked(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """q (rows, group, kv_heads, dim) -> (rows, heads · dim)."""
        k, v = (part[layer, :, :, :self.upto].index_select(0, self.slot_of_tile)
                for part in (self.cache.keys, self.cache.values))                       # (tiles, kv_heads, upto, dim)
        q = q[self.row_at].flatten(1, 2)                                                # (tiles, TILE · group, …)
        out = _attend(q, k, v, self.mask).unflatten(1, (TILE, -1))
        return out[self.tile, self.place].flatten(1)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """q (…, queries, kv_heads, dim), k, v (…, kv_heads, cells, dim), mask (…, 1, queries or 1, cells); like q.

    The heads of a group are queries of their one key head, so its keys are read once. Fused kernels give their result
    the layout of q, so nothing has to be moved before the next product.
    """
    q = q.transpose(1, 2)
    mask = mask.expand(*q.shape[:3], k.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
