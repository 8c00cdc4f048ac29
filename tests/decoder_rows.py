"""Requests as rows of steps, for the tests of utils.decoder."""

import random

import torch

from utils.decoder import TINY, SlotDecoder

SLOTS, CELLS = 5, 50


def decoder(config=TINY, dtype=torch.float64, slots=SLOTS, cells=CELLS, seed=0):
    return SlotDecoder(config, slots, cells, dtype=dtype, device="cpu", seed=seed)


def columns(rows):
    """(token, slot, position) each -> three tensors."""
    return [torch.tensor(column) for column in zip(*rows, strict=True)]


def sequences(seed, slots=SLOTS, longest=CELLS, words=TINY.words):
    """Tokens of a request per slot."""
    rng = random.Random(seed)
    return [[rng.randrange(words) for _ in range(rng.randint(1, longest))] for _ in range(slots)]


def mixes(rng, requests):
    """Steps of rows (token, slot, position): each has the next few tokens of some requests, shuffled."""
    at = [0] * len(requests)
    while any(done < len(tokens) for done, tokens in zip(at, requests, strict=True)):
        rows = []
        for slot, tokens in enumerate(requests):
            count = rng.choice([0, 1, 1, 3, 17, 40])
            rows += [(tokens[n], slot, n) for n in range(at[slot], min(at[slot] + count, len(tokens)))]
            at[slot] = min(at[slot] + count, len(tokens))
        if rows and rng.random() < 0.5:
            rows += [(rng.randrange(TINY.words), rng.randrange(len(requests)), -1) for _ in range(3)]       # padding
        if rows:
            rng.shuffle(rows)
            yield rows


def fill(model, requests):
    """All tokens of all requests, in one step."""
    rows = [(token, slot, n) for slot, tokens in enumerate(requests) for n, token in enumerate(tokens)]
    return model.logits(*columns(rows)).split([len(tokens) for tokens in requests])
