"""Judge of ``speedup``: how many times the throughput a loop has when host and GPU overlap."""

from __future__ import annotations

import networkx as nx

from ... import dag
from ...timeline import timeline
from ..check import Answer, Refused, call
from ..values import number, shown
from ..verdict import Picture, Tick, Verdict

PUZZLE = "speedup"
WITHIN = 0.005       # relative
SHARES = (0.24, 1 / 3, 0.05, 0.5, 0.6, 0.9, 0.0)
STEP_MS, STEPS = 12.0, 4
ENGINES = {"host": 1, "compute": 1}


def factor(share: float) -> float:
    """Throughput with overlap, in terms of that without: a step takes the longer of both parts, not their sum."""
    return 1 / max(share, 1 - share)


def judge_speedup(answer: Answer) -> Verdict:
    """Within 0.5 %, for idle shares below and above one half."""
    for share in SHARES:
        given = call(PUZZLE, answer, share, on=f"an idle share of {share:.3g}")
        gain = number(given.item() if getattr(given, "ndim", None) == 0 else given)
        if gain is None:
            raise _refused(f"returned {shown(given)}", "Return one number: how many times as many tokens in a second.",
                           share)
        if abs(gain - factor(share)) > WITHIN * factor(share):
            raise _refused(f"{float(gain):.4g} instead of {factor(share):.4g}, idle share {share:.3g}",
                           f"{_explain(float(gain), share)}\n{_parts(share)}", share)
    tried = "idle shares " + ", ".join(f"{share:.3g}" for share in SHARES)
    return Verdict(PUZZLE, [Tick("correct", True, f"within {WITHIN:.1%}, also where the host is the bound")],
                   tried=tried, picture=_picture(SHARES[0]))


def _parts(share: float) -> str:
    """A step of both loops."""
    host, gpu = share * STEP_MS, (1 - share) * STEP_MS
    return (f"Of a step of {STEP_MS:g} ms the host takes {host:.4g} and the GPU {gpu:.4g}. With overlap it takes "
            f"{max(host, gpu):.4g} ms, so {STEP_MS:g} ms hold {factor(share):.4g} steps in the place of 1.")


def _explain(gain: float, share: float) -> str:
    """Which mistake gives this factor, in words."""
    guesses = (
        (BOUND, [1 / (1 - share)] if 0.5 < share < 1 else []),
        (NO_CHANGE, [share] if share else []),
        (ADDED, [1 + share, 1 + min(share, 1 - share)]),
        (PERCENT, [100 * (factor(share) - 1), 100 * factor(share), 100 * share] if share else []),
        (MORE, [factor(share) - 1]),
        (LESS, [1 / factor(share), 1 - share, share]),
        (INVERSE, [1 / share] if share else []),
        (TWICE, [2.0]),
    )
    near = [says for says, wrong in guesses if any(abs(gain - value) <= WITHIN * max(value, 0.01) for value in wrong)]
    return near[0] if near else "How long is a step when the host's part and the GPU's run at the same time?"


BOUND = ("That has the whole wait go away. Here the host's part is the longer one, and the GPU waits for it also with "
         "overlap: the host is the bound.")
NO_CHANGE = "That is the idle share itself. A factor of 1 means no change, and overlap makes nothing slower."
ADDED = ("1 + s adds the saved share to the old throughput. But s is a part of the old *time*: a share s less time for "
         "the same tokens is 1 / (1 - s) times the tokens in the same time.")
PERCENT = "That is in per cent. Give the factor: 1.5 for half as many tokens more."
MORE = "That is how much *more*, as a share. Give the factor: 1 means no change."
LESS = "That is how the *time* of a step changes. The throughput changes the other way round."
INVERSE = "That is the gain when only the host's part is left. The longer part is left."
TWICE = "Twice is the limit, reached where both parts are equally long."


def _picture(share: float) -> Picture:
    """Some steps in turns and with overlap."""
    return timeline({"in turns": _loop(share, False), "overlapped": _loop(share, True)}, unit="ms", critical=False,
                    title=f"{STEPS} steps, idle share {share:.3g}")


def _loop(share: float, overlap: bool) -> dag.Schedule:
    graph = nx.DiGraph()
    for n in range(STEPS):
        graph.add_node(f"host {n}", duration=round(share * STEP_MS, 3), resource="host", kind="host", label=str(n))
        graph.add_node(f"gpu {n}", duration=round((1 - share) * STEP_MS, 3), resource="compute", kind="kernel",
                       label=str(n))
        graph.add_edge(f"host {n}", f"gpu {n}")
        if n and not overlap:
            graph.add_edge(f"gpu {n - 1}", f"host {n}")
    return dag.schedule(graph, ENGINES, fifo=True)


def _refused(why: str, says: str, share: float) -> Refused:
    return Refused(Verdict(PUZZLE, [Tick("correct", False, why)], says=says, picture=_picture(share)))
