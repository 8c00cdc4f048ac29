"""The decode step's own kernels, in Triton: importable only where triton is; ``fused`` decides and calls.

All add up in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm(x, parts, weight, out, rows, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """A program per row: x += parts, then its RMSNorm; x (rows, WIDTH), parts (PARTS, rows, WIDTH)."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    there = at < WIDTH
    value = tl.load(x + row * WIDTH + at, there, 0.0).to(tl.float32)
    if PARTS:
        for part in tl.static_range(PARTS):
            value += tl.load(parts + (part * rows + row) * WIDTH + at, there, 0.0)
        tl.store(x + row * WIDTH + at, value.to(x.dtype.element_ty), there)
    scale = tl.rsqrt(tl.sum(value * value) / WIDTH + eps)
    value *= scale * tl.load(weight + at, there, 0.0).to(tl.float32)
    tl.store(out + row * WIDTH + at, value.to(out.dtype.element_ty), there)


@triton.jit
def product(x, weight, out, rows, width, depth, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """out[split] = x · weight.T of a share of the depth.

    x (rows, depth), weight (width, depth), out (splits, rows, width). A program has COLUMNS of the width and one
    share, of which it reads DEPTH at a time.
    """
    column, split = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1)
    row, share = tl.arange(0, ROWS), depth // (tl.num_programs(1) * DEPTH) * DEPTH       # a multiple of DEPTH, visibly
    at = split * share + tl.arange(0, DEPTH)
    weights, inputs = weight + column[:, None] * depth + at[None, :], x + row[:, None] * depth + at[None, :]
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for _ in range(0, share, DEPTH):
        a, b = tl.load(weights, eviction_policy="evict_first"), tl.load(inputs, row[:, None] < rows, 0.0)
        total = tl.dot(a, b.T, total, input_precision="ieee")
        weights += DEPTH
        inputs += DEPTH
    there = out + (split * rows + row)[None, :] * width + column[:, None]
    tl.store(there, total.to(out.dtype.element_ty), row[None, :] < rows)


@triton.jit
def gated(x, weight, out, rows, hidden, depth, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    """out = silu(x · gate.T) · (x · up.T); weight (2 · hidden, depth): gate above up, COLUMNS of both in a program."""
    column, row, at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, ROWS), tl.arange(0, DEPTH)
    gates, inputs = weight + column[:, None] * depth + at[None, :], x + row[:, None] * depth + at[None, :]
    ups = gates + hidden * depth
    gate, up = tl.zeros((COLUMNS, ROWS), tl.float32), tl.zeros((COLUMNS, ROWS), tl.float32)
    for _ in range(0, depth, DEPTH):
        b = tl.load(inputs, row[:, None] < rows, 0.0).T
        gate = tl.dot(tl.load(gates, eviction_policy="evict_first"), b, gate, input_precision="ieee")
        up = tl.dot(tl.load(ups, eviction_policy="evict_first"), b, up, input_precision="ieee")
        gates += DEPTH
        ups += DEPTH
        inputs += DEPTH
    there = out + row[None, :] * hidden + column[:, None]
    tl.store(there, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), row[None, :] < rows)


@triton.jit
def _heads(qkv, head, dims, there, DIM: tl.constexpr):
    """Heads of a row, (heads, DIM) float32; qkv: the row's."""
    return tl.load(qkv + head[:, None] * DIM + dims[None, :], there[:, None], 0.0).to(tl.float32)


@triton.jit
def attend(
    qkv, keys, values, cos, sin, positions, out, scale, cells,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, QUERIES: tl.constexpr, CELLS: tl.constexpr,
):
    """A program per slot and key head: turns its queries and its key, writes key and value, reads the cells before.

    qkv (slots, (GROUP + 2) · KV_HEADS · DIM), row i of slot i; keys, values (slots, KV_HEADS, cells, DIM).
    """
    row, head = tl.program_id(0), tl.program_id(1)
    dims, query, one = tl.arange(0, DIM), tl.arange(0, QUERIES), tl.arange(0, 1)
    qkv += row * (GROUP + 2) * KV_HEADS * DIM
    kind: tl.constexpr = keys.dtype.element_ty
    position = tl.load(positions + row).to(tl.int32)
    # turned to its position
    other = (dims + DIM // 2) % DIM
    angle = tl.maximum(position, 0) * DIM + dims
    by_cos, by_sin = tl.load(cos + angle).to(tl.float32), tl.load(sin + angle).to(tl.float32)
    by_sin = tl.where(dims < DIM // 2, -by_sin, by_sin)
    mine, here = query * KV_HEADS + head, query < GROUP
    q = _heads(qkv, mine, dims, here, DIM) * by_cos[None, :]
    q = (q + _heads(qkv, mine, other, here, DIM) * by_sin[None, :]).to(kind)
    key, value = one + GROUP * KV_HEADS + head, one + (GROUP + 1) * KV_HEADS + head
    k = _heads(qkv, key, dims, one == 0, DIM) * by_cos[None, :]
    k = (k + _heads(qkv, key, other, one == 0, DIM) * by_sin[None, :]).to(kind)
    v = _heads(qkv, value, dims, one == 0, DIM).to(kind)
    # its own cell: written for later steps, not read again
    base = (row * KV_HEADS + head).to(tl.int64) * cells * DIM
    cell = base + tl.maximum(position, 0) * DIM + dims[None, :]
    tl.store(keys + cell, k, (one[:, None] == 0) & (position >= 0))
    tl.store(values + cell, v, (one[:, None] == 0) & (position >= 0))
    most = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
    total, seen = tl.full((QUERIES,), 1.0, tl.float32), tl.zeros((QUERIES, DIM), tl.float32) + v.to(tl.float32)
    # the cells before
    for start in range(0, position, CELLS):
        at = start + tl.arange(0, CELLS)
        there, before = at < position, base + at[:, None] * DIM + dims[None, :]
        score = tl.dot(q, tl.load(keys + before, there[:, None], 0.0).T, input_precision="ieee") * scale
        score = tl.where(there[None, :], score, float("-inf"))
        last, most = most, tl.maximum(most, tl.max(score, 1))
        share, less = tl.exp2(score - most[:, None]), tl.exp2(last - most)
        total = total * less + tl.sum(share, 1)
        held = tl.load(values + before, there[:, None], 0.0)
        seen = tl.dot(share.to(kind), held, seen * less[:, None], input_precision="ieee")
    at = row * GROUP * KV_HEADS * DIM + mine[:, None] * DIM + dims[None, :]
    tl.store(out + at, (seen / total[:, None]).to(kind), here[:, None])
