"""A decode step by the operators and by the kernels of its own, for the tests of utils.decoder.fused."""

import torch
import torch.nn.functional as F

from utils.decoder import SlotDecoder, fused
from utils.decoder.attention import OneEach

SLOTS, CELLS = 5, 50
POSITIONS = ([0, 49, -1, 17, 16], [15, 31, 32, 33, 48], [-1, -1, 1, -1, 2])


def filled(config, dtype, device, cells=CELLS):
    """With something in every cell of every slot."""
    model, generator = SlotDecoder(config, SLOTS, cells, dtype, device), torch.Generator(device).manual_seed(1)
    for part in (model.cache.keys, model.cache.values):
        part.normal_(generator=generator)
    return model


def rows(positions, device):
    return [torch.tensor(row, device=device) for row in (range(3, 3 + SLOTS), range(SLOTS), positions)]


def scores(model, tokens, slots, positions):
    """By the kernels, wherever they run."""
    each = OneEach(model.cache, slots, positions, model.cache.keys.shape[3])
    with torch.inference_mode():
        x = F.embedding(each.tokens_of(tokens), model.weights.embed)
        return F.linear(each.asked(fused.hidden(model, x, each)), model.weights.head).float()


def both(model, positions, device="cpu"):
    """Scores and caches by the operators and by the kernels, from the same caches."""
    given = rows(positions, device)
    kept = [part.clone() for part in (model.cache.keys, model.cache.values)]
    model.fused = False
    plain, found = model.logits(*given, one_each=True), []
    for part, before in zip((model.cache.keys, model.cache.values), kept, strict=True):
        found.append(part.clone())
        part.copy_(before)
    return (plain, *found), (scores(model, *given), model.cache.keys, model.cache.values)


def exactly(model, positions):
    """Scores by the operators in float32, from the same weights and caches."""
    device = model.weights.embed.device
    exact = SlotDecoder(model.config, model.slots, model.length, torch.float32, device)
    for here, there in zip(model.weights.tensors(), exact.weights.tensors(), strict=True):
        there.copy_(here)
    for name in ("keys", "values"):
        getattr(exact.cache, name).copy_(getattr(model.cache, name))
    return exact.logits(*rows(positions, device), one_each=True)
