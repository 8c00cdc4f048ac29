"""Parts of async_batching.py about one step and about memory: decode beside its floor, and what two slots take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.async_served import Graphed, Served, capture, lesson_06, lesson_07, mark
from benchmarks.onload_windows import summary
from benchmarks.two_models_windows import give_back
from utils.decoder import SlotDecoder, fused
from utils.decoder.attention import OneEach

WARM_UPS = 3


# ---- one decode step

def copy_gb_per_s(nbytes: int, repeats: int) -> dict[str, Any]:
    """Bytes read and written per second by a copy within the device, the rate that a floor is made of."""
    source, target = (torch.zeros(nbytes, dtype=torch.uint8, device="cuda") for _ in range(2))
    ms = windows(lambda: target.copy_(source), inner=4, repeats=repeats)
    return summary([2 * nbytes / each / 1e6 for each in ms])


def windows(step: Callable[[], Any], inner: int, repeats: int) -> list[float]:
    """Milliseconds of one call, in ``repeats`` windows of ``inner`` calls back to back."""
    for _ in range(WARM_UPS):
        step()
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = mark()
        for _ in range(inner):
            step()
        end = mark()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / inner)
    return found


def decode_step(decoder: SlotDecoder, contexts: list[int], gb_per_s: float, inner: int,
                repeats: int) -> list[dict[str, Any]]:
    """For contexts of so many cells in every slot: a step eager and as a graph, and parts of it alone, as graphs.

    Where it has kernels of its own, the same by PyTorch's operators alone: "plain ...".
    """
    rows, own = [], decoder.fused
    for cells in contexts:
        slots = torch.arange(decoder.slots).to("cuda")
        given = [torch.full_like(slots, 1), slots, torch.full_like(slots, cells - 1)]
        nbytes = decoder.step_nbytes(cells)
        floor = nbytes / gb_per_s / 1e6
        ms = {}
        for prefix in ("", "plain ") if own else ("",):
            decoder.fused = own and not prefix
            ms |= {prefix + name: windows(step, inner, repeats) for name, step in ways_of(decoder, given, cells)}
        decoder.fused = own
        rows.append({"cells": cells, "nbytes": nbytes, "floor_ms": round(floor, 4), "fused": own,
                     "ms": {name: summary(each) for name, each in ms.items()},
                     "over_floor": {name: round(summary(each)["median"] / floor, 4) for name, each in ms.items()
                                    if name.endswith(("eager", "graph"))},
                     "products_floor_ms": round(decoder.weights.step_nbytes / gb_per_s / 1e6, 4)})
    return rows


def ways_of(decoder: SlotDecoder, given: list[torch.Tensor], cells: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    def eager() -> None:
        decoder.decode(*given, upto=cells)

    yield "eager", eager
    yield "graph", graph_of(eager)
    yield "products", graph_of(lambda: products(decoder, decoder.slots))
    yield "attention", graph_of(lambda: attention(decoder, given, cells))


def graph_of(step: Callable[[], Any]) -> Callable[[], None]:
    return capture(step, torch.cuda.Stream(), None)[0].replay


@torch.inference_mode()
def products(decoder: SlotDecoder, rows: int) -> None:
    """All products with weights of a step, with nothing between them."""
    weights, like = decoder.weights, decoder.weights.embed
    x = torch.ones(rows, decoder.config.width, dtype=like.dtype, device="cuda")
    seen = torch.ones(rows, decoder.config.heads * decoder.config.dim, dtype=like.dtype, device="cuda")
    gated = torch.ones(rows, decoder.config.hidden, dtype=like.dtype, device="cuda")
    both, added = F.linear, lambda part, weight: torch.addmm(x, part, weight.t())
    if decoder.fused:
        both, added = fused.gated, fused.product
    for layer in weights.layers:
        F.linear(x, layer.qkv)
        added(seen, layer.out)
        both(x, layer.gate_up)
        added(gated, layer.down)
    F.linear(x, weights.head)


@torch.inference_mode()
def attention(decoder: SlotDecoder, given: list[torch.Tensor], cells: int) -> None:
    """The attention of all layers, in place over the cache; the kernel of its own turns and writes, too."""
    config, rows = decoder.config, OneEach(decoder.cache, given[1], given[2], -(-cells // 16) * 16)
    like = {"dtype": decoder.cache.keys.dtype, "device": "cuda"}
    q = torch.ones(decoder.slots, config.group, config.kv_heads, config.dim, **like)
    qkv = torch.ones(decoder.slots, (config.heads + 2 * config.kv_heads) * config.dim, **like)
    for layer in range(config.layers):
        if decoder.fused:
            fused.attended(qkv, decoder, layer, rows.positions)
        else:
            rows.attend(layer, q)


# ---- memory

def memory(decoder: SlotDecoder, budget: int) -> dict[str, Any]:
    """Bytes of the pipeline's buffers, and what graphs reserve: one; two in one pool; two in pools of their own."""
    slots = lesson_07.Streams(None, budget).slots
    reserved = {name: graphs_reserve(decoder, budget, shared, count)
                for name, shared, count in (("one", True, 1), ("two, shared", True, 2), ("two, unshared", False, 2))}
    return {"budget_rows": budget, "slot_bytes": [nbytes_of(slot) for slot in slots],
            "synchronous_bytes": nbytes_of(lesson_06.Buffers(budget)),
            "kv_cache_bytes": decoder.cache.keys.nbytes + decoder.cache.values.nbytes,
            "weights_bytes": decoder.weights.nbytes, "graph_reserved_bytes": reserved}


def nbytes_of(buffers: Any) -> dict[str, int]:
    """Pinned, and on the device."""
    tensors = [value for value in vars(buffers).values() if isinstance(value, torch.Tensor)]
    on_device = sum(tensor.nbytes for tensor in tensors if tensor.is_cuda)
    return {"pinned": sum(tensor.nbytes for tensor in tensors) - on_device, "device": on_device}


def graphs_reserve(decoder: SlotDecoder, budget: int, shared: bool, count: int) -> int:
    """Bytes that graphs of a decode step reserve; captured before on the same stream, which so has its workspace."""
    pipeline = Graphed(Served(decoder), budget).capture(shared, count)
    pipeline.graphs.clear()
    give_back()
    before = torch.cuda.memory_reserved()
    pipeline.capture(shared, count)
    give_back()
    return torch.cuda.memory_reserved() - before
