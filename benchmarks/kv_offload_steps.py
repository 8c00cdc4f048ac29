"""Steps of a decoder under the clock, with its cache on the GPU or streamed, and the bounds that they are judged by."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.onload_mlp import mark
from utils.lessons import import_lesson

lesson = import_lesson("05_offload_and_swap")
DTYPE, WORDS = torch.bfloat16, 4096
RESIDENT, STREAMED, SERIAL = "resident", "streamed", "serial"
WITHIN = "within the device"    # copies of the newest rows, which the resident run does without
PREFILL, DECODE = "prefill", "decode"
COLD_STEPS = 2                  # of prefill and of decode: not judged


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder, from the model's config.json."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int

    @property
    def row_shape(self) -> tuple[int, int, int]:
        """Keys and values of one token in one layer."""
        return 2, self.kv_heads, self.width // self.heads

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row_shape) * DTYPE.itemsize

    def decoder(self, rows: int) -> torch.nn.Module:
        """With random weights, on the GPU."""
        sizes = self.layers, self.width, self.heads, self.kv_heads, self.hidden
        with torch.device("cuda"):
            return lesson.Decoder(*sizes, WORDS, rows).to(DTYPE)

    def budget(self, rows: int, keep: int) -> int:
        """Bytes for two slots, and for the newest ``keep`` rows of every layer."""
        return (2 * rows + self.layers * keep) * self.row_bytes


@dataclass(frozen=True)
class Step:
    """``tokens`` on top of ``at``, with the newest ``keep`` rows of each layer on the GPU."""

    kind: str
    at: int
    tokens: int
    keep: int

    def bytes(self, shape: Shape) -> dict[str, int]:
        """In, out, and of newest rows copied within the device: into a slot, and of this step's from the slot."""
        row = shape.layers * shape.row_bytes
        return {"in_bytes": max(0, self.at - self.keep) * row, "out_bytes": self.tokens * row,
                "device_bytes": (min(self.at, self.keep) + self.tokens) * row}


def plan(tokens: int, chunk: int, decode: int) -> list[Step]:
    """Prefill in chunks, as many rows of which stay, then decode token by token."""
    if tokens % chunk:
        raise ValueError(f"{tokens} tokens are no whole number of chunks of {chunk}")
    return ([Step(PREFILL, at, chunk, chunk) for at in range(0, tokens, chunk)]
            + [Step(DECODE, tokens + n, 1, chunk) for n in range(decode)])


def steady(steps: Sequence[Step], kind: str) -> list[int]:
    """Numbers of the steps of a kind that are judged."""
    return [n for n, step in enumerate(steps) if step.kind == kind][COLD_STEPS:]


@dataclass
class Played:
    """One window: ms of each step, and until the host had launched it; scores; and the most memory beyond what was
    allocated when it began."""

    step_ms: list[float]
    host_ms: list[float]
    scores: list[torch.Tensor]
    extra_bytes: int


def play(model: torch.nn.Module, cache: Any, ids: torch.Tensor, steps: Sequence[Step]) -> Played:
    """All steps back to back, from an idle device and an empty cache; the host waits for none of them."""
    start_over(cache)
    torch.cuda.reset_peak_memory_stats()
    before = peak_bytes()
    scores, events, clock = [], [mark()], [time.perf_counter()]
    for step in steps:
        scores.append(model(input_of(step, ids, scores), cache))
        events.append(mark())
        clock.append(time.perf_counter())
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return Played(times, [1e3 * (b - a) for a, b in itertools.pairwise(clock)], scores, peak_bytes() - before)


def requested_bytes() -> int:
    """What is asked for now, without what the allocator adds to a block (where it says so)."""
    return torch.cuda.memory_stats().get("requested_bytes.all.current", torch.cuda.memory_allocated())


def peak_bytes() -> int:
    """The most that was asked for at a time, counted in the same way."""
    return torch.cuda.memory_stats().get("requested_bytes.all.peak", torch.cuda.max_memory_allocated())


def input_of(step: Step, ids: torch.Tensor, scores: Sequence[torch.Tensor]) -> torch.Tensor:
    """Part of the prompt, or the most likely word after the step before."""
    return ids[step.at:step.at + step.tokens] if step.kind == PREFILL else scores[-1].argmax(-1, keepdim=True)


def start_over(cache: Any) -> None:
    """An empty cache with nothing loaded ahead, on an idle device."""
    cache.rewind(0)
    torch.cuda.synchronize()
    if hasattr(cache, "ring"):
        cache.ring.restart()


@contextmanager
def on_one_stream(cache: Any) -> Iterator[Any]:
    """The same cache, which loads and stores on the current stream."""
    torch.cuda.synchronize()
    before = cache.storing, cache.ring.copying
    cache.storing = cache.ring.copying = torch.cuda.current_stream()
    try:
        yield cache
    finally:
        torch.cuda.synchronize()
        cache.storing, cache.ring.copying = before


def differences(played: Played, expected: Played, steps: Sequence[Step]) -> dict[str, int]:
    """How many steps have other scores, in any bit, and how many decoded tokens are others."""
    pairs = list(zip(played.scores, expected.scores, strict=True))
    tokens = [n for n, step in enumerate(steps) if step.kind == DECODE]
    wrong_tokens = sum(int(one.argmax() != other.argmax()) for one, other in (pairs[n - 1] for n in tokens))
    return {"scores": sum(not torch.equal(one, other) for one, other in pairs), "tokens": wrong_tokens}
