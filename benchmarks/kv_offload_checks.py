"""Parts of kv_offload.py that no clock decides: a step that fails half-way, and the picture of one chunk's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.kv_offload_cases import Case
from benchmarks.kv_offload_steps import (
    DECODE,
    PREFILL,
    Played,
    differences,
    input_of,
    peak_bytes,
    requested_bytes,
    start_over,
)
from utils.timeline import timeline
from utils.trace import record


class Interrupted(Exception):
    """What the failing layer raises."""


@contextmanager
def failing(layer: torch.nn.Module) -> Iterator[None]:
    """The layer raises when it is called."""
    def interrupt(*_: Any) -> None:
        raise Interrupted
    hook = layer.register_forward_pre_hook(interrupt)
    try:
        yield
    finally:
        hook.remove()


def after_failures(case: Case) -> dict[str, Any]:
    """All steps on the streamed cache, a prefill and a decode step of which fail in the middle and are done again."""
    kinds = [step.kind for step in case.steps]
    fail = {kind: kinds.index(kind) + min(2, kinds.count(kind) - 1) for kind in (PREFILL, DECODE)}
    scores, failed = [], []
    start_over(case.cache)
    for n, step in enumerate(case.steps):
        ids = input_of(step, case.ids, scores)
        if n in fail.values():
            try:
                with failing(case.model.layers[case.shape.layers // 2]):
                    case.model(ids, case.cache)
            except Interrupted:
                failed.append(n)
        scores.append(case.model(ids, case.cache))
    torch.cuda.synchronize()
    return {"shape": case.shape.name, "chunk": case.chunk, "failed_steps": failed,
            "failed_in_layer": case.shape.layers // 2,
            "wrong": differences(Played([], [], scores, 0), case.expected, case.steps)}


def picture(case: Case, folder: Path) -> dict[str, Any]:
    """One chunk in the middle of the prefill, recorded with its memory; trace and text timeline go to the folder."""
    at = case.steps[len(case.ids) // case.chunk // 2].at
    start_over(case.cache)
    for start in range(0, at, case.chunk):
        case.model(case.ids[start:start + case.chunk], case.cache)

    def one_chunk() -> None:
        case.cache.rewind(at)
        case.model(case.ids[at:at + case.chunk], case.cache)

    torch.cuda.synchronize()
    others = requested_bytes() - case.cache_bytes
    budget = others + case.budget_bytes + case.extra_bytes["resident"]
    torch.cuda.reset_peak_memory_stats()
    trace = record(one_chunk, memory=True)
    peak, requested = torch.cuda.max_memory_allocated(), peak_bytes()
    title, name = f"{case.shape.name}: {case.chunk} tokens on top of {at}", case.shape.name.lower().replace(" ", "_")
    trace.save(folder / f"kv_chunk_{name}.json.gz")
    text = timeline(trace, title=title, budget=budget, lanes=("h2d", "compute", "d2h")).text
    (folder / f"kv_chunk_{name}.txt").write_text(text + "\n", encoding="utf-8")
    return {"shape": case.shape.name, "chunk": case.chunk, "at": at, "budget_bytes": budget,
            "allocator_peak_bytes": peak, "requested_peak_bytes": requested,
            "trace_peak_bytes": int(trace.peak_bytes()), "spans": len(trace),
            "busy_ms": {lane: round(trace.busy_us(lane) / 1e3, 3) for lane in ("h2d", "kernel", "d2h")},
            "text": text}
