"""How the programs find out whether the host is held, and which error a call raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from utils import simgpu

BUSY_MS = 30.0
SMALL, LARGE = 256, 8 << 20  # floats: 1 KiB, 32 MiB
PROGRAMS: dict[str, Callable[[], Any]] = {}
_cycles_per_ms = 1e6


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[function.__name__] = function
    return function


def calibrate() -> None:
    """Clock cycles of torch.cuda._sleep per millisecond."""
    global _cycles_per_ms
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        start.record()
        torch.cuda._sleep(20_000_000)
        end.record()
        end.synchronize()
    _cycles_per_ms = 20_000_000 / start.elapsed_time(end)


def busy(stream: Any = None) -> None:
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(BUSY_MS * _cycles_per_ms))


def host_ms(call: Callable[[], Any]) -> float:
    start = simgpu.clock()
    call()
    return (simgpu.clock() - start) / 1e3


def waits(call: Callable[[], Any], stream: Any = None) -> bool:
    """Whether ``call`` waits for work queued before it (on the current stream, or on ``stream``)."""
    call()  # whatever happens only the first time
    torch.cuda.synchronize()
    busy(stream)
    held = host_ms(call) > BUSY_MS / 2
    torch.cuda.synchronize()
    return held


def outcome(call: Callable[[], Any]) -> str:
    """The built-in family of the error that ``call`` raises, "ok" otherwise."""
    try:
        call()
    except (torch.OutOfMemoryError, NotImplementedError, TypeError, ValueError, IndexError) as error:
        return type(error).__name__
    except RuntimeError:
        return "RuntimeError"
    return "ok"


def ones(count: int, **options: Any) -> torch.Tensor:
    return torch.ones(count, device="cuda", **options)
