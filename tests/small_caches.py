"""A small model for lesson 05's caches, a resident and a streamed cache of it, and a device with an uneven link."""

from __future__ import annotations

from dataclasses import replace

import torch
from interrupts import Broken

from utils import simgpu
from utils.lessons import import_lesson

lesson = import_lesson("05_offload_and_swap")
DIM = 8
ROW_BYTES = 2 * DIM * 4     # one key and one value in float32


def profile(back=1.0, out=1.0, **changes):
    """A scaled H200 with a link that is so many times slower to the device, and to the host."""
    card = simgpu.H200.scaled(1 / 128)
    rates = {"h2d_bytes_per_s": card.h2d_bytes_per_s / back, "d2h_bytes_per_s": card.d2h_bytes_per_s / out}
    return replace(card, **rates, **changes)


class Reader:
    """Layers of which each adds its tokens' rows to the cache, and depends on all rows up to them."""

    def __init__(self, layers, rows):
        self.layers, self.weight = layers, torch.linspace(0.5, 1.5, rows).view(-1, 1, 1).cuda()

    def __call__(self, x, cache, fails=None):
        """x (tokens, DIM); fails: the layer that raises, and whether before it writes its rows or after."""
        with cache.step(len(x)):
            for i in range(self.layers):
                with cache.layer(i) as kv:
                    if fails == (i, False):
                        raise Broken
                    stop = cache.at + len(x)
                    kv[cache.at:stop] = torch.stack([x, x + i], 1)[:, :, None]
                    x = torch.tanh(x + (kv[:stop, :, 0] * self.weight[:stop]).sum((0, 1)))
                    if fails == (i, True):
                        raise Broken
        return x


def tokens(count, seed):
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed)).cuda()


def caches(layers, rows, keep):
    """A resident one, and a streamed one that keeps so many rows of each layer on the device."""
    shape = (rows, 2, 1, DIM)
    streamed = lesson.StreamedKV(layers, shape, ROW_BYTES * (2 * rows + layers * keep), torch.float32)
    assert streamed.keep == keep
    return lesson.ResidentKV(layers, shape, torch.float32), streamed


def same_rows(resident, streamed):
    """Whether the host has every row."""
    torch.cuda.synchronize()
    return resident.at == streamed.at and all(
        torch.equal(there[:resident.at], here[:resident.at].cpu())
        for there, here in zip(streamed.host, resident.rows, strict=True))
