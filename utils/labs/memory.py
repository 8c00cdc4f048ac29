"""What a program took of the device's memory, read from the allocator's record, which no program can reset."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..simgpu.device import SimDevice


SPARE = 0.75                  # of a layer: a few more activations are not judged
ALL_KEPT = " No more pieces were taken than that needs: are old outputs kept? Each is read only by the next product."


class Mark(NamedTuple):
    """A moment: how many entries the record had, and how many streams a workspace of the matrix library."""

    entries: int
    workspaces: int


class Taken(NamedTuple):
    """Since a mark: the most bytes in use beyond what there was, and how many of them were in freed blocks that another
    stream still needs; how many pieces were taken, and their bytes. The matrix library's workspaces count nowhere."""

    peak_bytes: int
    held_bytes: int
    pieces: int
    bytes: int


def mark(gpu: SimDevice) -> Mark:
    """The present moment."""
    return Mark(len(gpu.machine.memory.history), len(_workspaces(gpu)))


def taken_since(gpu: SimDevice, since: Mark) -> Taken:
    """What was taken from a mark until now."""
    record = gpu.machine.memory.history[since.entries - 1:]
    others = Counter(_workspaces(gpu)[since.workspaces:])
    beside, most, held, pieces, size = record[0][2], 0, 0, 0, 0
    for (_, before, _, _), (_, allocated, active, _) in pairwise(record):
        if others[step := allocated - before] > 0:   # a workspace, taken at a stream's first product
            others[step] -= 1
            beside += step
        elif step > 0:
            pieces, size = pieces + 1, size + step
        if active - beside > most:
            most, held = active - beside, active - allocated
    return Taken(most, held, pieces, size)


def _workspaces(gpu: SimDevice) -> list[int]:
    return [queue.workspace.size for queue in gpu.machine.queues if hasattr(queue.workspace, "size")]
