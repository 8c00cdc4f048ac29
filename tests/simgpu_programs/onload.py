"""Small pinned weights, the profile for them at a copy/compute ratio, and layers streamed through slots."""

from __future__ import annotations

import torch

from utils import simgpu

RATIOS = (0.1, 0.5, 1, 2, 10)
D = 64  # stands for 8192: the profile is scaled by 1/128
WEIGHT_BYTES, GEMM_FLOPS = D * D * 4, 2 * D**3


def profile(ratio: float) -> simgpu.Profile:
    return simgpu.RTX_5060_LAPTOP.scaled(D / 8192).with_ratio(ratio, WEIGHT_BYTES, GEMM_FLOPS)


def kinds(gpu) -> list[str]:
    return [h.kind for h in gpu.hazards]


def pairs(gpu) -> list[tuple[str, str, str]]:
    return [(h.kind, h.first.name, h.second.name) for h in gpu.hazards]


def weights(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(D, D, generator=generator) / 8).pin_memory() for _ in range(count)]


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


def reference(x: torch.Tensor, ws: list[torch.Tensor]) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        for w in ws:
            x = x @ w
        return x


class Onload:
    """Layers streamed through ``slots`` buffers, with each wait that makes it correct as a switch."""

    def __init__(self, ws, slots=2, *, wait_free=True, wait_calls=True, carry=True, shared_event=False):
        self.ws, self.count = ws, slots
        self.wait_free, self.wait_calls, self.carry = wait_free, wait_calls, carry
        self.stream = torch.cuda.Stream()
        self.slots = [simgpu.name(torch.empty(D, D, device="cuda"), f"slot {i}") for i in range(slots)]
        self.loaded = [torch.cuda.Event() for _ in range(slots)]
        self.free = [torch.cuda.Event() for _ in range(slots)]
        if shared_event:
            self.loaded = [self.loaded[0]] * slots
        self.turn = 0
        self.stream.wait_stream(torch.cuda.current_stream())

    def load(self, layer, slot, first):
        with torch.cuda.stream(self.stream):
            if self.wait_free and (self.wait_calls or not first):
                self.stream.wait_event(self.free[slot])
            self.slots[slot].copy_(self.ws[layer], non_blocking=True)
            self.loaded[slot].record()

    def __call__(self, x):
        base = self.turn if self.carry else 0
        slot_of = lambda layer: (base + layer) % self.count  # noqa: E731
        ahead = self.count - 1
        for layer in range(min(ahead, len(self.ws))):
            self.load(layer, slot_of(layer), True)
        for layer in range(len(self.ws)):
            if layer + ahead < len(self.ws):
                self.load(layer + ahead, slot_of(layer + ahead), layer + ahead < self.count)
            torch.cuda.current_stream().wait_event(self.loaded[slot_of(layer)])
            x = x @ self.slots[slot_of(layer)]
            self.free[slot_of(layer)].record()
        self.turn = (base + len(self.ws)) % self.count
        return x
