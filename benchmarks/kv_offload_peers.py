"""What else one could do: compute the prefix again, or let transformers offload its cache."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.kv_offload_cases import Case
from benchmarks.kv_offload_steps import DECODE, DTYPE, PREFILL, RESIDENT, WORDS, Shape, Step, input_of
from benchmarks.onload_mlp import mark
from benchmarks.onload_windows import ratio, summary

OFFLOADED, WAITING = "DynamicCache(offloading=True)", "DynamicCache(offloading=True), synchronize after each step"


# ---- the prefix again

def prefixes(case: Case, lengths: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """For prefixes of these many tokens: prefill on the resident cache, and copying their rows back into it, alone."""
    rows = []
    for tokens in lengths:
        ways: dict[str, Callable[[], None]] = {
            "recompute": lambda tokens=tokens: prefill(case, tokens), "copy": lambda tokens=tokens: bring(case, tokens)}
        ms: dict[str, list[float]] = {name: [] for name in ways}
        for _, (name, way) in itertools.product(range(repeats + 1), ways.items()):
            ms[name].append(time_of(way))
        kept = {name: values[1:] for name, values in ms.items()}
        rows.append({"tokens": tokens, "bytes": case.shape.layers * tokens * case.shape.row_bytes,
                     "recompute_over_copy": ratio(kept["recompute"], kept["copy"])}
                    | {f"{name}_ms": summary(values) for name, values in kept.items()})
    return rows


def prefill(case: Case, tokens: int) -> None:
    case.resident.rewind(0)
    for start in range(0, tokens, case.chunk):
        case.model(case.ids[start:min(tokens, start + case.chunk)], case.resident)


def bring(case: Case, tokens: int) -> None:
    for here, host in zip(case.resident.rows, case.cache.host, strict=True):
        here[:tokens].copy_(host[:tokens], non_blocking=True)


def time_of(way: Callable[[], None]) -> float:
    """Milliseconds on the device, from an idle one."""
    torch.cuda.synchronize()
    start = mark()
    way()
    end = mark()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


# ---- transformers

def llama(shape: Shape, rows: int) -> torch.nn.Module:
    """transformers' LlamaModel with these sizes and random weights, on the GPU."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(hidden_size=shape.width, intermediate_size=shape.hidden, num_hidden_layers=shape.layers,
                         num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, vocab_size=WORDS,
                         max_position_embeddings=rows, attn_implementation="sdpa")
    with torch.device("cuda"):
        return LlamaModel(config).to(DTYPE).eval()


def cache_argument(model: torch.nn.Module) -> str:
    """What the model's forward calls its cache; transformers renamed it after 5.17."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def chat(model: torch.nn.Module, ids: torch.Tensor, steps: Sequence[Step], offloading: bool,
         wait: bool) -> dict[str, Any]:
    """All steps on a new DynamicCache: ms and scores of each; the most memory beyond what there was."""
    from transformers import DynamicCache

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    cache = {cache_argument(model): DynamicCache(config=model.config, offloading=offloading)}
    scores, events = [], [mark()]
    for step in steps:
        found = model(input_ids=input_of(step, ids, scores)[None], use_cache=True, **cache)
        scores.append(found.last_hidden_state[0, -1] @ model.embed_tokens.weight.t())
        events.append(mark())
        if wait:
            torch.cuda.synchronize()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return {"step_ms": times, "scores": scores, "extra_bytes": torch.cuda.max_memory_allocated() - before}


def transformers_cache(shape: Shape, ids: torch.Tensor, steps: Sequence[Step], repeats: int) -> dict[str, Any]:
    """The same model and steps on DynamicCache, resident and offloaded; each played once before it counts."""
    model = llama(shape, len(ids) + len(steps))
    ways = {RESIDENT: (False, False), WAITING: (True, True), OFFLOADED: (True, False)}
    played: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for _, (name, (offloading, wait)) in itertools.product(range(repeats + 1), ways.items()):
        played[name].append(chat(model, ids, steps, offloading, wait))
    expected = played[RESIDENT][0]["scores"]
    return {"shape": shape.name, "tokens": len(ids), "chunk": steps[0].tokens, "ways": {
        name: of_way(runs[1:], expected, steps) for name, runs in played.items()}}


def of_way(runs: Sequence[dict[str, Any]], expected: Sequence[torch.Tensor], steps: Sequence[Step]) -> dict[str, Any]:
    """ms of the last chunk and of the last token, wrong steps by repeat, and the most memory."""
    last = {kind: max(n for n, step in enumerate(steps) if step.kind == kind) for kind in (PREFILL, DECODE)}
    wrong = [sum(not torch.equal(a, b) for a, b in zip(run["scores"], expected, strict=True)) for run in runs]
    return {"wrong_steps": wrong, "extra_bytes": max(run["extra_bytes"] for run in runs)} | {
        f"last_{kind}_ms": summary([run["step_ms"][n] for run in runs]) for kind, n in last.items()}
