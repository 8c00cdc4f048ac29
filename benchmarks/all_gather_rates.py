"""Parts of all_gather.py about the link itself: NCCL's all-gather and the copy engines, alone and beside products."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from benchmarks.all_gather_world import World, gathered, lesson
from benchmarks.onload_programs import DTYPE

MIB = 2**20
Same = Callable[[float], float]


def alone_ms(step: Callable[[], None], count: int) -> float:
    """ms of one step, over many in a row, after a few that do not count."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        step()
    start.record()
    for _ in range(count):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count


def beside(move: Callable[[], None], product: Callable[[], None], streams: list[torch.cuda.Stream], move_ms: float,
           product_ms: float, count: int) -> dict[str, float]:
    """ms of a product while moves run all the time, and of a move while products do; ``streams``: where moves go.

    Launched in turn, half as many moves again as fit beside a product, so that they outlast the products. Not more:
    when a stream has about a thousand operations to do, the host waits, and could not launch products meanwhile.
    """
    torch.cuda.synchronize()
    start, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    ends: list[torch.cuda.Event] = []
    start.record()
    for stream in streams:
        stream.wait_event(start)
    for _ in range(count):
        product()
        with ExitStack() as stack:
            for stream in reversed(streams):                    # the first one's device becomes the current one
                stack.enter_context(torch.cuda.stream(stream))
            for _ in range(math.ceil(1.5 * product_ms / move_ms)):
                move()
                ends.append(torch.cuda.Event(enable_timing=True))
                ends[-1].record()
    done.record()
    torch.cuda.synchronize()
    window = start.elapsed_time(done)
    finished = [ms for ms in map(start.elapsed_time, ends) if ms <= window]
    return {"product_ms": window / count, "move_ms": finished[-1] / len(finished) if finished else 0,
            "outlasted": float(start.elapsed_time(ends[-1]) >= window)}


def row(nbytes: int, on_the_link: float, move: Callable[[], None], product: Callable[[], None],
        streams: list[torch.cuda.Stream], sizes: dict[str, Any], same: Same) -> dict[str, Any]:
    """One size: alone and beside products; ``on_the_link``: bytes that a move brings over the link."""
    move_ms = same(alone_ms(move, sizes["moves"]))
    product_ms = same(alone_ms(product, sizes["products"]))
    found = {"mib": nbytes / MIB, "ms": round(move_ms, 5), "gb_per_s": round(on_the_link / move_ms / 1e6, 2)}
    if nbytes < sizes["beside_from"]:                           # shorter than their launches
        return found
    both = {name: same(value) for name, value in
            beside(move, product, streams, move_ms, product_ms, sizes["products"]).items()}
    if both["move_ms"]:
        found["beside_products_gb_per_s"] = round(on_the_link / both["move_ms"] / 1e6, 2)
    return found | {"product_ms": round(product_ms, 5), "product_beside_ms": round(both["product_ms"], 5),
                    "outlasted": bool(both["outlasted"])}


def products(width: int, rows: int, device: torch.device | str = "cuda") -> Callable[[], None]:
    x, weight = (torch.randn(n, width, device=device).to(DTYPE) / width**0.5 for n in (rows, width))
    return lambda: x @ weight


def all_gather(world: World, whole: torch.Tensor, mine: torch.Tensor) -> None:
    if world.small:
        whole.copy_(gathered(mine, world.ranks), non_blocking=True)
    else:
        lesson.all_gather(whole, mine)


def rates(world: World, sizes: dict[str, Any]) -> None:
    """NCCL's all-gather of a layer in halves, by size."""
    product, rows = products(sizes["width"], sizes["rows"]), []
    for nbytes in sizes["nbytes"]:
        mine = torch.ones(nbytes // 2 // world.ranks, dtype=DTYPE, device=world.plain)
        whole = torch.empty(nbytes // 2, dtype=DTYPE, device="cuda")

        move = partial(all_gather, world, whole, mine)
        move()
        if not bool((whole == 1).all()):
            raise RuntimeError(f"an all-gather of {nbytes} bytes did not bring all of them")
        world.wait()
        rows.append(row(nbytes, nbytes * (world.ranks - 1) / world.ranks, move, product, [torch.cuda.Stream()], sizes,
                        world.agree))
        world.keep("rows", rows)


# ---- one process, two GPUs: the copy engines

def copies(world: World, sizes: dict[str, Any]) -> None:
    """Copies from the other GPU, by size."""
    here, there = (torch.device("cuda", 0), torch.device("cuda", 0 if world.small else 1))
    world.keep("peer_access", world.small or torch.cuda.can_device_access_peer(0, 1))
    product, rows = products(sizes["width"], sizes["rows"]), []
    for nbytes in sizes["nbytes"]:
        source = torch.ones(nbytes // 4, dtype=DTYPE, device=there)         # as many bytes as a rank receives
        target = torch.empty(nbytes // 4, dtype=DTYPE, device=here)
        streams = [torch.cuda.Stream(here)] + ([] if world.small else [torch.cuda.Stream(there)])
        move = partial(target.copy_, source, non_blocking=True)
        rows.append(row(nbytes, nbytes / 2, move, product, streams, sizes, lambda value: value))
        world.keep("rows", rows)
