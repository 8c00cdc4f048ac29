"""Small models of layers of every kind for lesson 05's slots, and the same ones resident."""

from __future__ import annotations

import copy

import torch
from interrupts import Broken
from small_layers import MAKERS, W
from torch import nn

from utils.lessons import import_lesson

lesson = import_lesson("05_offload_and_swap")


class Timed(nn.Module):
    """A layer as a denoising step calls it; `Timed.left` runs later it fails."""

    left = -1

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, time):
        Timed.left -= 1
        if Timed.left == -1:
            raise Broken
        return torch.tanh(self.layer(x) + time)


def build(models):
    """Layers by kind: "tied" shares a square weight with all others, "again" is one layer that comes in many places."""
    torch.manual_seed(0)
    first = nn.Linear(W, W)
    again = Timed(first)

    def layer(kind):
        if kind == "again":
            return again
        made = MAKERS["linear" if kind == "tied" else kind]()
        if kind == "tied":
            made.weight = first.weight
        return Timed(made)

    return [[layer(kind) for kind in kinds] for kinds in models]


def linears(*counts):
    return build([["linear"] * count for count in counts])


class Resident:
    """All models on the device."""

    def __init__(self, models):
        self.models = copy.deepcopy(nn.ModuleList(map(nn.ModuleList, models))).requires_grad_(False).cuda()

    @torch.inference_mode()
    def step(self, x, args, m, coming=None, leaving=False):
        for layer in self.models[m]:
            x = layer(x, *args)
        return x


def size_of(models):
    return max(lesson.packed_bytes(layer) for model in models for layer in model)


def copies(gpu, kind="h2d"):
    return list(gpu.trace().columns["kind"]).count(kind)
