"""Rates of the link: copies in alone, out alone, both at once, and copies within the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.onload_mlp import mark, mean, within
from utils.lessons import import_lesson

lesson = import_lesson("05_offload_and_swap")
IN, OUT = 0, 1


@dataclass(frozen=True)
class Link:
    """Bytes per ms; ``share_in``, ``share_out``: what is left of each rate while both run."""

    in_rate: float
    out_rate: float
    share_in: float
    share_out: float
    device_rate: float          # read once and written once: bytes of the source per ms

    @property
    def share(self) -> float:
        """The rate of both together over the sum of the two alone."""
        return (self.share_in * self.in_rate + self.share_out * self.out_rate) / (self.in_rate + self.out_rate)

    def transfer_ms(self, in_bytes: float, out_bytes: float) -> float:
        return lesson.transfer_ms(in_bytes / self.in_rate, out_bytes / self.out_rate, self.share)

    def summary(self) -> dict[str, float]:
        """GB/s and shares."""
        return {name: round(value if "share" in name else value / 1e6, 3) for name, value in asdict(self).items()} | {
            "share": round(self.share, 4)}


class Directions:
    """Copies of one piece of memory in a row, in one direction or in both."""

    def __init__(self, piece_bytes: int):
        self.bytes = piece_bytes
        self.host = [torch.empty(piece_bytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self.here = [torch.empty(piece_bytes, dtype=torch.uint8, device="cuda") for _ in range(2)]
        self.streams = [torch.cuda.Stream(), torch.cuda.Stream()]
        for memory, stream in zip(self.here, self.streams, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            memory.record_stream(stream)

    def copy(self, way: int) -> None:
        target, source = (self.here, self.host) if way == IN else (self.host, self.here)
        target[way].copy_(source[way], non_blocking=True)

    def run(self, ways: Sequence[int], copies: int) -> dict[int, list[Any]]:
        """An event before each copy and one behind the last, by direction."""
        torch.cuda.synchronize()
        events: dict[int, list[Any]] = {way: [] for way in ways}
        for n in range(copies + 1):
            for way in ways:
                with torch.cuda.stream(self.streams[way]):
                    events[way].append(mark())
                    if n < copies:
                        self.copy(way)
        torch.cuda.synchronize()
        return events

    def rate(self, way: int, copies: int) -> float:
        """Bytes per ms in one direction, the other one idle."""
        events = self.run([way], copies)[way]
        return copies * self.bytes / events[0].elapsed_time(events[-1])

    def within_device(self, copies: int) -> float:
        """Bytes of the source per ms."""
        torch.cuda.synchronize()
        events = [mark()]
        for _ in range(copies):
            self.here[0].copy_(self.here[1], non_blocking=True)
        events.append(mark())
        torch.cuda.synchronize()
        return copies * self.bytes / events[0].elapsed_time(events[-1])

    def measure(self, copies: int) -> Link:
        """So many copies each way, alone and together."""
        alone = [self.rate(way, copies) for way in (IN, OUT)]
        events = self.run([IN, OUT], 2 * copies)
        together = [self.bytes / mean(within(events[way], events[1 - way])) for way in (IN, OUT)]
        shares = [one / other for one, other in zip(together, alone, strict=True)]
        return Link(*alone, *shares, self.within_device(copies))
