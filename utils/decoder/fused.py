"""The decode step in six kernels of its own and one product per layer, where triton can make them.

Between its products a decode step has little to do and much to launch: what takes PyTorch a dozen kernels (norms,
turning, writing, attention, silu, sums of split products) takes longer than reading the cache. Without triton, on the
CPU and on the simulated device the operators of ``model`` and ``attention`` do the same, with the same result up to
rounding.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import warnings
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from .config import Config

if TYPE_CHECKING:
    from .attention import OneEach
    from .model import SlotDecoder

# What was fastest on an H200 with the shapes of Llama 3 8B and 32 rows
COLUMNS, DEPTH, SPLITS = 64, 128, 2         # of a program of a product: 128 programs for 4096 columns
STAGES, GATED_STAGES = 6, 4                 # pieces of DEPTH on their way to a program
CELLS = 64                                  # that attention reads at a time
PIECES = 16                                 # of a row of scores
ROWS = 64                                   # beyond that, products are no longer only the reading of weights


def possible(config: Config, slots: int, weights: torch.Tensor) -> bool:
    """Whether the kernels are for this model and where it is."""
    return (type(weights) is torch.Tensor and weights.is_cuda and torch.version.cuda is not None
            and weights.dtype in (torch.bfloat16, torch.float16) and slots <= ROWS and fits(config)
            and importlib.util.find_spec("triton") is not None and can_make())


@functools.cache
def can_make() -> bool:
    """Whether a kernel can be made here: triton needs a C compiler, too."""
    like = torch.ones(1, 16, dtype=torch.bfloat16, device="cuda")
    try:
        return bool((normed(like, None, like[0], 0.0) == 1).all())
    except Exception as error:              # of whatever it called: without kernels everything works as well
        warnings.warn(f"triton cannot make kernels here ({error!r:.200}): decode steps take longer", stacklevel=4)
        return False


def fits(config: Config) -> bool:
    """Sizes without remainders, and nothing that only some models have."""
    power = config.dim >= 16 and not config.dim & (config.dim - 1)
    share = SPLITS * DEPTH
    whole = not (config.width % DEPTH or config.heads * config.dim % share or config.hidden % share)
    return power and whole and not (config.qkv_bias or config.qk_norm)


def hidden(model: SlotDecoder, x: torch.Tensor, rows: OneEach) -> torch.Tensor:
    """x (slots, width), the embedding, through all layers and the last norm."""
    layers, eps = model.weights.layers, model.config.eps
    norms = [*(layer.attention_norm for layer in layers[1:]), model.weights.norm]
    h = normed(x, None, layers[0].attention_norm, eps)
    for number, (layer, after) in enumerate(zip(layers, norms, strict=True)):
        seen = attended(F.linear(h, layer.qkv), model, number, rows.positions)
        h = normed(x, product(seen, layer.out), layer.mlp_norm, eps)
        h = normed(x, product(gated(h, layer.gate_up), layer.down), after, eps)
    return h


def greedy(scores: torch.Tensor) -> torch.Tensor:
    """argmax of (rows, words), by pieces first: PyTorch gives a whole row to one block, and there are few rows."""
    if scores.shape[1] % PIECES:
        return scores.argmax(-1)
    best, at = scores.unflatten(-1, (PIECES, -1)).max(-1)               # (rows, PIECES)
    piece = best.argmax(-1, keepdim=True)
    return (at.gather(-1, piece) + piece * (scores.shape[1] // PIECES))[:, 0]


# ---- each kernel's call

def normed(x: torch.Tensor, parts: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x += parts (splits, rows, width), in place; its RMSNorm."""
    from . import kernels

    out, (rows, width), splits = torch.empty_like(x), x.shape, 0 if parts is None else len(parts)
    kernels.norm[(rows,)](x, x if parts is None else parts, weight, out, rows, eps, WIDTH=width,
                          BLOCK=power_of_two(width), PARTS=splits, num_warps=16)
    return out


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x · weight.T in float32 parts that remain to be added up, (splits, rows, width)."""
    from . import kernels

    (rows, depth), width = x.shape, len(weight)
    out = torch.empty(SPLITS, rows, width, dtype=torch.float32, device=x.device)
    kernels.product[(width // COLUMNS, SPLITS)](x, weight, out, rows, width, depth, ROWS=power_of_two(rows),
                                                COLUMNS=COLUMNS, DEPTH=DEPTH, num_warps=4, num_stages=STAGES)
    return out


def gated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """silu(x · gate.T) · (x · up.T), (rows, hidden), where weight is gate above up."""
    from . import kernels

    (rows, depth), hidden = x.shape, len(weight) // 2
    out = torch.empty(rows, hidden, dtype=x.dtype, device=x.device)
    kernels.gated[(hidden // COLUMNS,)](x, weight, out, rows, hidden, depth, ROWS=power_of_two(rows), COLUMNS=COLUMNS,
                                        DEPTH=DEPTH, num_warps=4, num_stages=GATED_STAGES)
    return out


def attended(qkv: torch.Tensor, model: SlotDecoder, layer: int, positions: torch.Tensor) -> torch.Tensor:
    """qkv (slots, (heads + 2 · kv_heads) · dim), not turned -> (slots, heads · dim); writes the cache."""
    from . import kernels

    config, keys, values = model.config, model.cache.keys[layer], model.cache.values[layer]
    out = torch.empty(len(qkv), config.heads * config.dim, dtype=qkv.dtype, device=qkv.device)
    kernels.attend[(len(qkv), config.kv_heads)](
        qkv, keys, values, model.rotary.cos, model.rotary.sin, positions, out,
        config.dim ** -0.5 / math.log(2), keys.shape[2], GROUP=config.group, KV_HEADS=config.kv_heads, DIM=config.dim,
        QUERIES=power_of_two(config.group), CELLS=CELLS, num_warps=8)
    return out


def power_of_two(least: int, smallest: int = 16) -> int:
    return max(smallest, 1 << (least - 1).bit_length())
