"""Judge of ``gather_and_tokens``: how long an all-gather takes, and behind how many tokens the products hide it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..values import shown
from ..verdict import Picture, Tick, Verdict
from .reading import listing, pair, plain

PUZZLE = "gather_and_tokens"
TICKS = ("gather", "tokens")
WITHIN = 0.01            # relative
ROUNDED = 1.0            # tokens that a right answer may be off besides: it may be rounded to whole ones
NEAR = 0.002             # relative: how closely a wrong formula is recognised
DRAWN_STEPS, DRAWN = 16, 40   # most steps of a ring in a picture; how much longer one of the two may be in it
SHAPE = "Return a pair: milliseconds of the gather, and tokens on each GPU."


@dataclass(frozen=True)
class Layer:
    """A layer in shards on ``gpus`` GPUs, and their link.

    ``rate`` is in ``unit``, "Gb/s" or "GB/s", of each direction or, ``both_ways``, of both together. ``step_us``:
    latency of one step of the ring. ``flops_per_s``: what the products reach.
    """

    parameters: int
    weight_bytes: int
    gpus: int
    rate: float
    unit: str
    both_ways: bool
    step_us: float
    flops_per_s: float

    def __str__(self) -> str:
        return (f"{self.parameters:,} parameters of {self.weight_bytes} byte{'s' * (self.weight_bytes > 1)}, "
                f"{self.gpus} GPU{'s' * (self.gpus > 1)}, {self.rate:g} {self.unit} "
                f"{'in both directions together' if self.both_ways else 'in each direction'}, {self.step_us:g} µs "
                f"a step, {self.flops_per_s / 1e12:g} TFLOP/s")

    @property
    def nbytes(self) -> int:
        """Of the whole layer."""
        return self.parameters * self.weight_bytes

    @property
    def bytes_per_s(self) -> float:
        """Of the link, in one direction."""
        return self.rate * 1e9 / (8 if self.unit == "Gb/s" else 1) / (2 if self.both_ways else 1)

    @property
    def ms(self) -> float:
        """Of the gather."""
        return (self.gpus - 1) * (self.step_us / 1e3 + self.nbytes / self.gpus / self.bytes_per_s * 1e3)

    @property
    def token_ms(self) -> float:
        """Of the product, for each token."""
        return 2 * self.parameters / self.flops_per_s * 1e3

    @property
    def tokens(self) -> float:
        """Whose product takes as long as the gather."""
        return self.ms / self.token_ms


LAYERS = (
    Layer(8192**2, 1, 4, 900, "GB/s", True, 0, 682e12),
    Layer(8192**2, 2, 64, 400, "Gb/s", False, 0, 682e12),
    Layer(1024**2, 2, 8, 450, "GB/s", False, 5, 400e12),
    Layer(4_000_000, 1, 2, 55, "GB/s", False, 10, 100e12),
    Layer(5120 * 13824, 4, 4, 200, "Gb/s", True, 20, 60e12),
    Layer(4096**2, 2, 1, 50, "GB/s", False, 2, 300e12),
)


def judge_gather_and_tokens(answer: Answer) -> Verdict:
    """Both within 1 %, for links in bits and in bytes, with and without latencies."""
    for layer in LAYERS:
        given = call(PUZZLE, listing(answer, 2), layer, on=str(layer))
        ms, tokens = (plain(one) for one in pair(given) or (None, None))
        if ms is None or tokens is None:
            raise _refused("gather", f"returned {shown(given)}", SHAPE, layer)
        _judge_ms(float(ms), layer)
        _judge_tokens(float(tokens), layer)
    first = LAYERS[0]
    whys = f"within {WITHIN:.0%}, {first.ms:.3f} ms for the first layer", f"within {WITHIN:.0%}, {first.tokens:.0f}"
    return Verdict(PUZZLE, [Tick(name, True, why) for name, why in zip(TICKS, whys, strict=True)],
                   tried="; ".join(map(str, LAYERS)), picture=_picture(first, first.tokens))


def _judge_ms(ms: float, layer: Layer) -> None:
    if abs(ms - layer.ms) > WITHIN * layer.ms:
        raise _refused("gather", f"{ms:.4g} ms instead of {layer.ms:.4g}",
                       f"{layer}.\n{_explain_ms(ms, layer)}\n{_steps(layer)}", layer, layer.tokens)


def _steps(layer: Layer) -> str:
    """The ring, step by step."""
    if layer.gpus == 1:
        return "One GPU has the whole layer: nothing is gathered."
    step = layer.ms / (layer.gpus - 1) * 1e3
    return (f"In the ring each GPU receives {layer.gpus - 1} shard{'s' * (layer.gpus > 2)} of "
            f"{layer.nbytes / layer.gpus / 1e6:.4g} MB, one in a step. A step takes {step - layer.step_us:.4g} µs at "
            f"{layer.bytes_per_s / 1e9:g} GB/s"
            f"{f' and {layer.step_us:g} µs of latency' if layer.step_us else ''}.")


WHOLE = ("That is the time of the whole layer. A GPU has its own shard already: (N - 1)/N of the layer come over its "
         "link.")
ONE_SHARD = "That is the time of one shard, the layer divided by N. In N - 1 steps N - 1 of them come."
TWICE = "That is twice too many: in an all-gather each shard comes once. (An all-reduce takes two such rounds.)"
ALL_WHOLE = "That has a whole layer come in each of N - 1 steps. It is a shard."
BITS = "A link in Gb/s moves bits, and 8 of them are a byte; one in GB/s moves bytes."
DIRECTIONS = ("A rate for both directions together is twice that of each. The ring receives in one of them and sends "
              "in the other: what counts is the rate of one.")
NO_LATENCY = "The latencies are missing: every step of the ring has one."
ONE_LATENCY = "The latency is counted once. The ring has N - 1 steps, and each waits for the one before."
LOG_LATENCIES = "The latency is counted log2(N) times. A ring has N - 1 steps: it passes shards to a neighbour only."
N_LATENCIES = "The latency is counted N times. Of N shards one is there already: N - 1 steps."
COUNTED = "weight_bytes is missing: it is bytes that cross the link."
LATENCY_UNIT = "step_us is in microseconds, and 1000 of them are a millisecond."
PREFIX = "Prefixes are powers of ten here: a GB is 10^9 bytes."
SWAPPED = "Is that the number of tokens? Milliseconds come first."
UNITS = (("That is in seconds: give milliseconds.", 1e-3), ("That is in microseconds: give milliseconds.", 1e3))


def _explain_ms(ms: float, layer: Layer) -> str:
    """Which mistakes give this time, in words; the fewest that do."""
    n, seconds = layer.gpus, layer.nbytes / layer.bytes_per_s
    shares = (("", (n - 1) / n), (WHOLE, 1.0), (ONE_SHARD, 1 / n), (ALL_WHOLE, n - 1.0),
              (TWICE, 2 * (n - 1) / n))
    rates = (("", 1.0), (BITS, 1 / 8 if layer.unit == "Gb/s" else 8.0), (PREFIX, 1e9 / 2**30))
    ways = (("", 1.0), (DIRECTIONS, 0.5 if layer.both_ways else 2.0))
    latencies = (("", n - 1), (NO_LATENCY, 0), (ONE_LATENCY, 1), (N_LATENCIES, n),
                 (LOG_LATENCIES, math.log2(n)), (LATENCY_UNIT, 1e3 * (n - 1)), (LATENCY_UNIT, 1e-3 * (n - 1))
                 ) if layer.step_us else (("", 0),)
    sizes = (("", 1.0), (COUNTED, 1 / layer.weight_bytes))
    found = []
    for made in itertools.product(shares, rates, ways, sizes, latencies, (("", 1.0), *UNITS)):
        (_, share), (_, rate), (_, way), (_, size), (_, steps), (_, unit) = made
        wrong = (seconds * 1e3 * share * rate * way * size + steps * layer.step_us / 1e3) * unit
        mistakes = list(dict.fromkeys(says for says, _ in made if says))
        if abs(ms - wrong) <= NEAR * wrong and 0 < len(mistakes) <= 2:
            found.append(mistakes)
    if not found and abs(ms - layer.tokens) <= max(ROUNDED, NEAR * layer.tokens):
        return SWAPPED
    return " ".join(min(found, key=len)) if found else "How many bytes come over one GPU's link, in how many steps?"


def _judge_tokens(tokens: float, layer: Layer) -> None:
    if abs(tokens - layer.tokens) <= max(ROUNDED, WITHIN * layer.tokens):
        return
    says = f"{layer}.\n{_explain_tokens(tokens, layer)}\n"
    if tokens > 0:
        says += f"With {shown(tokens)} tokens the product takes {tokens * layer.token_ms:.4g} ms, "
    else:
        says += f"A token's product takes {layer.token_ms:.4g} ms, "
    raise _refused("tokens", f"{shown(tokens)} tokens instead of {layer.tokens:.0f}",
                   f"{says}and the gather {layer.ms:.4g}.", layer, tokens)


def _explain_tokens(tokens: float, layer: Layer) -> str:
    """Which mistake gives this number, in words."""
    right, n = layer.tokens, layer.gpus
    whole = layer.nbytes / layer.bytes_per_s * 1e3 / layer.token_ms
    guesses = (
        ("FLOP are counted for parameters, not for bytes.", right / layer.weight_bytes),
        ("Twice as many. A weight takes part in a multiplication and an addition for every token: 2 FLOP, not 1.",
         2 * right),
        ("Half as many. A weight takes part in one multiplication and one addition for every token: 2 FLOP, not 4.",
         right / 2),
        ("Those are the tokens of all GPUs together. Each has a product of its own, and a gather of its own to hide.",
         n * right),
        ("That is what one GPU's share of the product would need. Each GPU multiplies its own tokens with the whole "
         "layer.", right / n),
        ("Those are tokens for the time of the whole layer; yours for the gather is another one.", whole),
        ("The latencies are in the gather's time, and have to be hidden, too.",
         right - (n - 1) * layer.step_us / 1e3 / layer.token_ms),
        *((f"Off by 10^{n}: milliseconds here, seconds there?", right * 10.0**n) for n in (-9, -6, -3, 3, 6)),
    )
    near = [says for says, wrong in guesses if abs(tokens - wrong) <= max(NEAR * wrong, 1e-9)]
    return near[0] if near else "Set equal: the gather's time, and that of 2 FLOP for each parameter and token."


def _picture(layer: Layer, tokens: float) -> Picture | None:
    """The gather's steps beside a product of so many tokens; None where one of them would be too short to see."""
    product = tokens * layer.token_ms
    if not layer.ms or not layer.ms / DRAWN < product < layer.ms * DRAWN or layer.gpus > DRAWN_STEPS:
        return None
    graph = nx.DiGraph()
    for step in range(layer.gpus - 1):
        graph.add_node(("step", step), duration=round(layer.ms / (layer.gpus - 1), 6), resource="link", kind="gather",
                       label=f"shard {step}")
    graph.add_node("product", duration=round(product, 6), resource="compute", kind="forward")
    return timeline(dag.schedule(graph, {"link": 1, "compute": 1}, fifo=True), critical=False,
                    title=f"The gather, and a product with {tokens:.0f} tokens")


def _refused(tick: str, why: str, says: str, layer: Layer, tokens: Any = None) -> Refused:
    at = TICKS.index(tick)
    ticks = [Tick(name, True if place < at else False if place == at else None, why if place == at else "")
             for place, name in enumerate(TICKS)]
    picture = _picture(layer, tokens) if tokens is not None else None
    return Refused(Verdict(PUZZLE, ticks, says=says, picture=picture))
