"""Other ways for the ranks of all_gather.py to bring a layer together: NCCL's kernel let in first, and copy engines."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import reduce_tensor

from benchmarks.all_gather_world import World, lesson


class FirstIn(lesson.Ranks):
    """The same gathers, each of which is next in its stream before the product beside it may begin."""

    def __init__(self, group: Any):
        self.group, self.shape, self.next = group, group.shape, torch.cuda.Event()

    def __len__(self) -> int:
        return len(self.group)

    def buffer(self) -> torch.Tensor:
        return self.group.buffer()

    def gather(self, i: int, buffer: torch.Tensor) -> None:
        self.next.record()
        self.group.gather(i, buffer)

    def own(self, i: int, buffer: torch.Tensor) -> None:
        torch.cuda.current_stream().wait_event(self.next)


def first_in(group: Any) -> Any:
    """The ring with two slots; its gathers, of high priority, are the first to get multiprocessors that are free."""
    model = lesson.GatheredMLP(FirstIn(group), 2)
    model.ring.copying = torch.cuda.Stream(priority=-1)
    model.ring.copying.wait_stream(torch.cuda.current_stream())
    for buffer in model.ring.buffers:
        buffer.record_stream(model.ring.copying)
    return model


class Peers(lesson.Ranks):
    """A rank of two that fetches the other one's shards with a copy engine, out of the other process's memory.

    PyTorch queues a copy between GPUs in the current stream of the GPU that it comes from: here one of this process's
    own. A gather leaves out the own half. A copy within a GPU is the work of its multiprocessors, which a product may
    not leave before its end, and what is queued behind that copy would wait as well.
    """

    def __init__(self, world: World, mine: list[torch.Tensor], weights: list[torch.Tensor]):
        self.shape, self.rank, self.mine, self.its = weights[0].shape, world.rank, mine, theirs(world, mine, weights)
        if world.small:
            self.mine = [shard.to("cuda") for shard in mine]
        self.sending = torch.cuda.Stream(self.its[0].device)

    def __len__(self) -> int:
        return len(self.mine)

    def buffer(self) -> torch.Tensor:
        return self.mine[0].new_empty(2 * self.mine[0].numel())

    def gather(self, i: int, buffer: torch.Tensor) -> None:
        receiving = torch.cuda.current_stream(buffer.device)
        with torch.cuda.stream(self.sending), torch.cuda.stream(receiving):
            buffer.view(2, -1)[1 - self.rank].copy_(self.its[i], non_blocking=True)

    def own(self, i: int, buffer: torch.Tensor) -> None:
        buffer.view(2, -1)[self.rank].copy_(self.mine[i], non_blocking=True)


def theirs(world: World, mine: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """The other rank's shards, where they are. (Small: all ranks' weights are the same, so they are known.)"""
    if world.small:
        return [lesson.shard(weight, 2)[1 - world.rank].to("cuda") for weight in weights]
    handles: list[Any] = [None] * world.ranks
    dist.all_gather_object(handles, [reduce_tensor(shard) for shard in mine])
    return [opened(*arguments) for opened, arguments in handles[1 - world.rank]]


def peers_of(world: World, mine: list[torch.Tensor], weights: list[torch.Tensor]) -> Peers | None:
    """None on all ranks where one of them cannot open the other one's memory."""
    try:
        peers = Peers(world, mine, weights)
    except RuntimeError as error:
        world.say(f"no copies between processes: {error}")
        peers = None
    return None if world.agree(peers is None) else peers
