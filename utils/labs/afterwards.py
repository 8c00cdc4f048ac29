"""What a judge does on the device behind a learner's function: use all the memory that was given back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..simgpu.device import SimDevice

NEXT = "memory that was given back"


def take_freed_memory(gpu: SimDevice) -> None:
    """Take and write every free block on the stream it belongs to, as whoever computes there next may do."""
    import torch

    from ..simgpu.streams import Stream

    memory, taken = gpu.machine.memory, []
    queues = {queue.actor: queue for queue in gpu.machine.queues}
    for (pool, actor, small), blocks in list(memory.free_blocks.items()):
        if pool is not None or actor not in queues:
            continue
        with torch.cuda.stream(Stream(_queue=queues[actor])):
            for size in [block.size for block in blocks]:
                taken += [_taken(piece) for piece in _pieces(size, memory.small if small else size)]
    del taken


def _pieces(size: int, most: int) -> list[int]:
    """A size in parts, none larger than ``most``."""
    whole, rest = divmod(size, most)
    return [most] * whole + ([rest] if rest else [])


def _taken(size: int) -> Any:
    import torch

    from .. import simgpu

    return simgpu.name(torch.empty(size, dtype=torch.uint8, device="cuda"), NEXT).zero_()
