"""Small layers of every kind for tests of streamed layers, and what they must give."""

from __future__ import annotations

import copy

import torch
from torch import nn

from utils import simgpu

W = 16
MODES = (torch.no_grad, torch.inference_mode)


class Mixed(nn.Module):
    """bf16 weights with a float32 norm, integer, boolean, scalar, expanded and empty buffers."""

    def __init__(self):
        super().__init__()
        self.up, self.norm = nn.Linear(W, 3, dtype=torch.bfloat16), nn.LayerNorm(3)
        self.down = nn.Linear(3, W, bias=False, dtype=torch.bfloat16)
        for name, buffer in {
            "places": torch.arange(W), "on": torch.rand(W) > 0.5, "scale": torch.tensor(0.5),
            "wide": torch.randn(1).expand(W), "none": torch.empty(0, 4), "turn": torch.randn(W, dtype=torch.complex64),
        }.items():
            self.register_buffer(name, buffer, persistent=name != "on")

    def forward(self, x):
        y = self.down(self.norm(self.up(x.bfloat16()).float()).bfloat16()).float()
        return torch.where(self.on, y + self.wide, self.scale * self.places / W) + self.turn.real


class TiedWithin(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(W, W), nn.Linear(W, W, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


def transformer(width=20):
    return nn.TransformerEncoderLayer(W, 2, width, batch_first=True).eval()


def transposed():
    layer = nn.Linear(W, W)
    layer.weight = nn.Parameter(torch.randn(W, W).t() / 4)
    return layer


def mlp(width):
    return nn.Sequential(nn.Linear(W, width), nn.GELU(), nn.Linear(width, W))


MAKERS = {
    "linear": lambda: nn.Linear(W, W), "small": lambda: mlp(1), "large": lambda: mlp(40),
    "norm": lambda: nn.LayerNorm(W), "none": nn.ReLU, "mixed": Mixed, "within": TiedWithin,
    "transposed": transposed, "transformer": transformer,
    "bn": lambda: nn.Sequential(nn.BatchNorm1d(5)).eval(),
}


def build(kinds):
    """Layers by kind; "again" is the layer before last once more, "tied" shares the first square weight."""
    torch.manual_seed(len(kinds))
    layers = [nn.Linear(W, W)]
    for kind in kinds:
        if kind == "again":
            layers.append(layers[-2 % len(layers)])
        else:
            layers.append(MAKERS["linear" if kind == "tied" else kind]())
            if kind == "tied":
                layers[-1].weight = layers[0].weight
    return layers


def resident(layers):
    """The same layers on the device, a layer that comes twice once."""
    return list(copy.deepcopy(nn.ModuleList(layers)).requires_grad_(False).cuda())


def call(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def batch(rows=2, seed=0):
    return torch.randn(rows, 5, W, generator=torch.Generator().manual_seed(seed)).cuda()


def agree(model, there, x, times=3):
    with torch.no_grad():
        return all(torch.equal(model(x), call(there, x)) for _ in range(times)) and not simgpu.active().hazards
