"""What lab 05 computes with: layers, inputs and KV, all different, whose results are exact in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..defaults import usual_defaults
from ..device import WEIGHT_BYTES as WEIGHT_BYTES
from ..device import WIDTH as WIDTH
from ..exact import digest
from ..layers import batch, digest_of, layer
from ..values import shown
from ..worked import worked

if TYPE_CHECKING:
    from ...simgpu import Profile

MOST_SHOWN = 3        # parts of an outcome that are named one by one


def two_engines() -> Profile:
    """A device that copies in both directions at once, each at a share of its rate."""
    from ... import simgpu

    return simgpu.A100


def one_engine() -> Profile:
    """The same device with a single copy engine, which both directions share."""
    return replace(two_engines(), copy_engines=1)


@dataclass(frozen=True)
class Part:
    """One thing that a run leaves: what it is, its digest (in words if it is something else), and the right one."""

    name: str
    seen: Any
    wanted: Any

    @property
    def right(self) -> bool:
        """Whether it holds what it should."""
        return self.seen == self.wanted


@dataclass(frozen=True)
class Outcome:
    """Everything that a run leaves; what of the caller's was changed, "" for nothing; and how many of the given buffers
    were used, where that is counted."""

    parts: tuple[Part, ...]
    touched: str = ""
    buffers: int | None = None

    @property
    def wrong(self) -> list[Part]:
        """The parts that are not right."""
        return [part for part in self.parts if not part.right]

    def __repr__(self) -> str:
        names = [part.name for part in self.wrong]
        if names and len(self.parts) == 1:
            return "wrong"
        more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        return f"wrong in {', '.join(names[:MOST_SHOWN])}{more}" if names else "right"


class Right:
    """The outcome that was wanted, in words."""

    def __repr__(self) -> str:
        return "right everywhere"


def part_of(name: str, value: Any, wanted: Any, rows: int = WIDTH) -> Part:
    """Read one tensor on the GPU."""
    return Part(name, digest_of(value, rows), wanted)


def host_part(name: str, tensor: Any, wanted: Any) -> Part:
    """Read one tensor in host memory."""
    with usual_defaults():
        return Part(name, digest(tensor), wanted)


def on_gpu(numbers: Sequence[int]) -> list[Any]:
    """Layers by their numbers, on the GPU."""
    return [layer(number).to("cuda") for number in numbers]


def stale(number: int, name: str) -> Any:
    """Pinned host memory that holds something old."""
    from ... import simgpu

    return simgpu.name(batch(700 + number, WIDTH).clone().pin_memory(), name)


@lru_cache(maxsize=64)
def stale_value(number: int) -> Any:
    """The digest of what ``stale`` memory holds."""
    return digest_on_host(batch(700 + number, WIDTH))


def reference(puzzle: str) -> Any:
    """The worked answer, which sets the target time."""
    return worked("05_offload_and_swap", puzzle)


@lru_cache(maxsize=256)
@usual_defaults()
def outputs(number: int, layers: int, rows: int = WIDTH) -> tuple[Any, ...]:
    """Digests of ``batch(number)`` behind each of the first ``layers`` layers."""
    x, found = batch(number, rows), []
    for i in range(layers):
        x = x @ layer(i)
        found.append(digest_on_host(x))
    return tuple(found)


def digest_on_host(tensor: Any) -> Any:
    """The digest of a tensor of this lab on the host."""
    return digest(tensor)


def part_words(part: Part) -> str:
    """A wrong part in words."""
    return f"{part.name} has checksum {shown(part.seen)} instead of {shown(part.wanted)}"
