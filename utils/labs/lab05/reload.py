"""Judge of ``reload_up_to``: up to which length a prefix's KV is reloaded sooner than it is recomputed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..values import number, shown
from ..verdict import Picture, Tick, Verdict

PUZZLE = "reload_up_to"
WITHIN = 0.02        # relative
NEAR = 0.004         # relative: how closely a wrong formula is recognised
DRAWN = 3            # times the right prefix: longer ones would be all load
ENGINES = {"link": 1, "gpu": 1}


@dataclass(frozen=True)
class Prompt:
    """A prompt of a prefix, whose KV lies behind a link, and of ``new_tokens`` that follow.

    ``value_bytes``: of one number in the KV. ``flops_per_s``: what products reach. ``link_bits_per_s``: of the link.
    """

    layers: int
    kv_heads: int
    head_dim: int
    value_bytes: int
    parameters: float
    flops_per_s: float
    link_bits_per_s: float
    new_tokens: int

    def __str__(self) -> str:
        return (f"{self.layers} layers, {self.kv_heads} KV heads of {self.head_dim}, {self.value_bytes} bytes, "
                f"{self.parameters / 1e9:g}e9 parameters, {self.flops_per_s / 1e12:g} TFLOP/s, "
                f"{self.link_bits_per_s / 1e9:g} Gbit/s, {self.new_tokens} new tokens")

    @property
    def load_s(self) -> float:
        """One token's KV of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.value_bytes * 8 / self.link_bits_per_s

    @property
    def compute_s(self) -> float:
        """One token through all layers."""
        return 2 * self.parameters / self.flops_per_s

    @property
    def crossover(self) -> float:
        """Tokens of the longest prefix for which a reload delays no more than recomputing; inf without a limit."""
        return self.crossing(self.load_s, self.compute_s)

    def crossing(self, load_s: float, compute_s: float, hidden: float | None = None) -> float:
        """The prefix at which both delays are equal; ``hidden``: share of the new tokens' time that loads lie under."""
        hidden = (self.layers - 1) / self.layers if hidden is None else hidden
        return hidden * self.new_tokens * compute_s / (load_s - compute_s) if load_s > compute_s else math.inf

    def delays_s(self, prefix: float) -> tuple[float, float]:
        """What a reload and what recomputing add to the new tokens' own time."""
        load, own = (total / self.layers for total in (prefix * self.load_s, self.new_tokens * self.compute_s))
        return load + (self.layers - 1) * max(0.0, load - own), prefix * self.compute_s


PROMPTS = (
    Prompt(32, 8, 128, 2, 8e9, 400e12, 10e9, 2048),
    Prompt(32, 32, 128, 2, 6.7e9, 400e12, 25e9, 4096),
    Prompt(28, 2, 128, 2, 1.5e9, 100e12, 5e9, 1024),
    Prompt(12, 12, 64, 4, 0.085e9, 10e12, 20e9, 512),
    Prompt(80, 8, 128, 1, 70e9, 1200e12, 10e9, 512),
    Prompt(32, 8, 128, 2, 8e9, 400e12, 440e9, 2048),
)


def judge_reload_up_to(answer: Answer) -> Verdict:
    """The prefix in tokens, within 2 %, and math.inf where there is no limit."""
    for prompt in PROMPTS:
        given = call(PUZZLE, answer, prompt, on=str(prompt))
        _judge(given, prompt)
    first = PROMPTS[0]
    why = f"{first.crossover:.0f} tokens for the first prompt, within {WITHIN:.0%}, and no limit on the fast link"
    return Verdict(PUZZLE, [Tick("correct", True, why)], tried="; ".join(map(str, PROMPTS)),
                   picture=_picture(first, first.crossover))


def _judge(given: object, prompt: Prompt) -> None:
    right, tokens = prompt.crossover, number(given)
    if math.isinf(right):
        if isinstance(given, float) and given == math.inf:
            return
        raise _refused(f"{shown(given)} instead of no limit", f"{prompt}. {_no_limit(prompt, tokens)}")
    if tokens is not None and abs(tokens - right) <= WITHIN * right:
        return
    says = f"{prompt}. "
    if tokens is None:
        endless = ENDLESS if given == math.inf else "Return one number of tokens. "
        raise _refused(f"returned {shown(given)}", says + endless + _sides(prompt))
    tokens = float(tokens)
    says += _explain(tokens, prompt)
    if tokens > 0:
        reload, again = (f"{delay * 1e3:.3g}" for delay in prompt.delays_s(tokens))
        says += f"\nWith {shown(tokens)} tokens, reloading delays by {reload} ms and recomputing by {again} ms. "
    else:
        says += "\n"
    says += _sides(prompt)
    picture = _picture(prompt, tokens) if right / DRAWN <= tokens <= DRAWN * right else None
    raise _refused(f"{shown(tokens)} tokens", says, picture)


def _sides(prompt: Prompt) -> str:
    return (f"In all layers together a token takes {prompt.load_s * 1e6:.4g} µs on the link and "
            f"{prompt.compute_s * 1e6:.4g} µs on the GPU.")


def _no_limit(prompt: Prompt, tokens: float | None) -> str:
    says = ("A token is loaded sooner than it is computed, so that reloading wins for every length: return math.inf. "
            f"{_sides(prompt)}")
    return f"The formula's denominator is below zero here. {says}" if tokens is not None and tokens < 0 else says


def _explain(tokens: float, prompt: Prompt) -> str:
    """Which mistake gives this number, in words."""
    load, compute = prompt.load_s, prompt.compute_s
    if tokens <= 0:
        return OVERLAP
    near = [says for says, wrong in (
        (FIRST_LAYER, prompt.crossing(load, compute, hidden=1.0)),
        (FULLY_HIDDEN, prompt.new_tokens * compute / load),
        (ONE_OF_TWO, prompt.crossing(load / 2, compute)), (ONE_OF_TWO, prompt.crossing(load / 2, compute, hidden=1.0)),
        (BITS, prompt.crossing(load / 8, compute)), (BITS, prompt.crossing(load * 8, compute)),
        (BITS, prompt.crossing(load / 64, compute)),
        ("A parameter takes part in a multiplication and an addition for every token: 2 FLOP.",
         prompt.crossing(load, compute / 2)),
        ("Every layer has its own KV: that is the KV of one.", prompt.crossing(load / prompt.layers, compute)),
        ("value_bytes is missing: KV is counted in bytes.", prompt.crossing(load / prompt.value_bytes, compute)),
        ("kv_heads is missing: each head has its own KV.", prompt.crossing(load / prompt.kv_heads, compute)),
        (NEW_TOO, prompt.crossing(load, compute) + prompt.new_tokens),
    ) if math.isfinite(wrong) and abs(tokens - wrong) <= NEAR * wrong]
    return near[0] if near else EQUAL


OVERLAP = ("That leaves out the overlap: a token takes longer on the link than on the GPU, but the new tokens are "
           "computed anyway, and while they are in one layer, the next layer's KV is loaded.")
FIRST_LAYER = ("Nearly: the load of the first layer has nothing to hide behind, and the new tokens in the last layer "
               "hide no load.")
FULLY_HIDDEN = ("Up to there each load is hidden by a layer of the new tokens. A longer prefix is exposed in part, and "
                "that part can still be shorter than recomputing it all.")
ONE_OF_TWO = ("Half of the KV is missing: a token has a key and a value in every layer and head, and each number of "
              "them takes value_bytes.")
ENDLESS = "There is a limit here. Is the link's rate in bits, and does the KV of all layers and heads count? "
BITS = "The link's rate is in bits per second, the KV in bytes: 8 bits are a byte."
NEW_TOO = "The new tokens are computed in both cases, and do not count."
EQUAL = ("Write down both delays. Reloading: the first load, and for every other layer what its load takes longer than "
         "the new tokens in the layer before. Recomputing: the prefix, at 2 FLOP for each parameter and token.")


def _picture(prompt: Prompt, prefix: float) -> Picture:
    """Both ways, layer by layer."""
    runs = {f"reload {prefix:.0f} tokens": _reloading(prompt, prefix),
            f"recompute {prefix:.0f} tokens": _recomputing(prompt, prefix)}
    return timeline(runs, unit="ms", critical=False, title="Layers by their numbers")


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)


def _reloading(prompt: Prompt, prefix: float) -> dag.Schedule:
    graph, layers = nx.DiGraph(), prompt.layers
    for i in range(layers):
        graph.add_node(f"load {i}", duration=_ms(prefix * prompt.load_s / layers), resource="link", kind="h2d",
                       label=str(i))
        graph.add_node(f"layer {i}", duration=_ms(prompt.new_tokens * prompt.compute_s / layers), resource="gpu",
                       kind="kernel", label=str(i))
        graph.add_edge(f"load {i}", f"layer {i}")
    return dag.schedule(graph, ENGINES, fifo=True)


def _recomputing(prompt: Prompt, prefix: float) -> dag.Schedule:
    graph, layers = nx.DiGraph(), prompt.layers
    for i in range(layers):
        graph.add_node(f"layer {i}", duration=_ms((prefix + prompt.new_tokens) * prompt.compute_s / layers),
                       resource="gpu", kind="kernel", label=str(i))
    return dag.schedule(graph, {"gpu": 1}, fifo=True)


def _refused(why: str, says: str, picture: Picture | None = None) -> Refused:
    return Refused(Verdict(PUZZLE, [Tick("correct", False, why)], says=says, picture=picture))
