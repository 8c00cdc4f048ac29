"""Parts of async_batching.py about the loops: all ways in turn, more and more host work, and what the profiler sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.async_served import ASYNC_GRAPHS, PAIRS, SYNC_GRAPHS, WAYS, Played, Ways, Work
from benchmarks.onload_mlp import rotated
from benchmarks.onload_windows import ratio, summary
from utils.decoder import SlotDecoder
from utils.trace import record


def in_turn(ways: Ways, work: Work, repeats: int, names: Sequence[str] = WAYS, busy_us: float = 0.0,
            after: Callable[[], object] = lambda: None) -> dict[str, list[Played]]:
    """Every way once in each repeat, which begins with another one each time."""
    found: dict[str, list[Played]] = {name: [] for name in names}
    for n in range(repeats):
        for name in rotated(list(names), n):
            found[name].append(ways.run(name, work, busy_us))
        after()
    return found


# ---- all ways

def loops(ways: Ways, work: Work, repeats: int, after: Callable[[], object]) -> dict[str, Any]:
    """Times, idle shares, and the saving beside the predicted one, which the synchronous run of each repeat gives."""
    runs = in_turn(ways, work, repeats, after=after)
    count = work.requests * work.tokens
    result: dict[str, Any] = {"work": vars(work), "repeats": repeats}
    result["ways"] = {name: of_way(played, count) for name, played in runs.items()}
    result["pairs"] = [of_pair(runs, *pair) for pair in PAIRS]
    result["tokens"] = tokens_of(ways.decoder, work, runs)
    return result


def of_way(runs: Sequence[Played], count: int) -> dict[str, Any]:
    return {"wall_ms": summary([run.wall for run in runs]), "steps": [run.steps for run in runs],
            "tokens_per_s": summary([count / run.wall * 1000 for run in runs]),
            "forward_ms": summary([sum(run.forward) for run in runs]),
            "idle_between": [round(run.idle_between, 5) for run in runs],
            "median_forward_ms": summary([sorted(run.forward)[len(run.forward) // 2] for run in runs])}


def of_pair(runs: dict[str, list[Played]], synchronous: str, asynchronous: str) -> dict[str, Any]:
    """Shares of the synchronous loop's time, and what of the predicted saving is there.

    Predicted from the synchronous run alone: a long one with the host's part h always below g saves h / (h + g).
    """
    pairs = list(zip(runs[synchronous], runs[asynchronous], strict=True))
    shares = [sync.host / (sync.host + sync.gpu) for sync, _ in pairs]
    predicted = [1 - sync.ahead / sync.wall for sync, _ in pairs]
    saved = [1 - ahead.wall / sync.wall for sync, ahead in pairs]
    return {"synchronous": synchronous, "asynchronous": asynchronous, "host_share": summary(shares),
            "predicted_saving": saved_of(predicted), "saving": saved_of(saved),
            "saved_of_predicted": ratio(saved, predicted),
            "wall_over_synchronous_gpu": ratio([ahead.wall for _, ahead in pairs],
                                               [sum(sync.forward) for sync, _ in pairs])}


def launches_of(runs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Host's time to launch: most steps, and the longest one (a piece of prompts)."""
    each = sorted(ms for run in runs for ms in run)
    return {"median": round(each[len(each) // 2], 4), "longest": round(each[-1], 4)}


def saved_of(values: Sequence[float]) -> dict[str, Any]:
    """Without a spread: a saving may be nothing, or less."""
    return {"median": round(sorted(values)[len(values) // 2], 5), "all": [round(value, 5) for value in values]}


# ---- more and more host work

def sweep(ways: Ways, work: Work, busy_ms: Sequence[float], repeats: int, after: Callable[[], object],
          late: Callable[[], bool]) -> list[dict[str, Any]]:
    """With graphs, the host busy for so long in each step: wall beside the sum of max(host, GPU), and the saving."""
    rows = []
    for ms in busy_ms:
        if late():
            break
        runs = in_turn(ways, work, repeats, (SYNC_GRAPHS, ASYNC_GRAPHS), ms * 1000, after)
        pairs = list(zip(runs[SYNC_GRAPHS], runs[ASYNC_GRAPHS], strict=True))
        predicted = [sync.ahead for sync, _ in pairs]
        rows.append({"busy_ms": ms, "host_ms": summary([sync.host for sync, _ in pairs]),
                     "gpu_ms": summary([sync.gpu for sync, _ in pairs]),
                     "launch_ms": [launches_of([run.launches for run in runs[name]]) for name in runs],
                     "steps": [runs[name][0].steps for name in runs],
                     "predicted_wall_ms": summary(predicted),
                     "over_predicted": ratio([ahead.wall for _, ahead in pairs], predicted)}
                    | {f"{name} wall_ms": summary([run.wall for run in runs[name]]) for name in runs}
                    | of_pair(runs, SYNC_GRAPHS, ASYNC_GRAPHS))
    return rows


# ---- tokens

def tokens_of(decoder: SlotDecoder, work: Work, runs: dict[str, list[Played]]) -> list[dict[str, Any]]:
    """Each way beside the first one, first repeat."""
    names = list(runs)
    first = runs[names[0]][0].tokens
    prompts = [request.prompt for request in work.make()]
    return [{"way": name, "beside": names[0]} | compared(decoder, prompts, first, runs[name][0].tokens)
            for name in names[1:]]


def compared(decoder: SlotDecoder, prompts: list[list[int]], one: list[list[int]],
             other: list[list[int]]) -> dict[str, Any]:
    """How many requests have the same tokens; of the others the first difference, and how near the two were there."""
    first = [next((n for n, (a, b) in enumerate(zip(x, y, strict=True)) if a != b), None)
             for x, y in zip(one, other, strict=True)]
    found: dict[str, Any] = {"requests": len(one), "equal": first.count(None)}
    parted = [(at, n) for n, at in enumerate(first) if at is not None]
    if parted:
        at, n = min(parted)
        scores = scores_after(decoder, [*prompts[n], *one[n][:at]])
        best, a, b = (value.item() for value in (scores.max(), scores[one[n][at]], scores[other[n][at]]))
        found["first"] = {"request": n, "token": at, "logit_gap": round(abs(a - b), 4),
                          "below_best": round(best - min(a, b), 4),
                          "bfloat16_step": 2.0 ** (math.floor(math.log2(abs(best))) - 7)}
    return found


def scores_after(decoder: SlotDecoder, tokens: list[int], piece: int = 64) -> torch.Tensor:
    """What follows the last token, float32 (words,) on the host; uses slot 0."""
    for start in range(0, len(tokens), piece):
        part = tokens[start:start + piece]
        rows = [torch.tensor(row).to("cuda") for row in (part, [0] * len(part), range(start, start + len(part)))]
        scores = decoder.logits(*rows)
    return scores[-1].cpu()


# ---- the profiler

def profiled(ways: Ways, work: Work, after: Callable[[], object]) -> dict[str, Any]:
    """A short run of each way: in which share of the time, from the first kernel to the last, any kernel ran."""
    found = {}
    for name in WAYS:
        trace = record(lambda name=name: ways.run(name, work), warmup=0)
        found[name] = {"gpu_active": round(1 - trace.idle_share("kernel"), 5),
                       "kernel_busy_ms": round(trace.busy_us("kernel") / 1e3, 3),
                       "launches": sum(kind == "kernel" for kind in trace.columns["kind"])}
        after()
    return found
