"""Two processes, one for each GPU (or, small, each with a simulated one), and what they share."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from utils import simgpu
from utils.lessons import import_lesson

lesson = import_lesson("09_hide_the_network")
SMALL_SCALE = 1 / 128           # of the simulated H200: 64 wide takes as long as 8192
TIMEOUT = timedelta(seconds=60)  # of a collective: a rank that failed must not keep the other one for long


@dataclass
class World:
    """One rank; ``store`` is where the ranks find each other, and ``file`` where rank 0 keeps what it has found."""

    rank: int
    ranks: int
    small: bool
    store: Path
    file: Path
    traces: Path | None = None
    found: dict[str, Any] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    def say(self, what: str) -> None:
        if self.rank == 0:
            print(f"  {what}: {time.monotonic() - self.begun:.1f} s", flush=True)

    def keep(self, name: str, value: Any) -> None:
        """Add to this part's results, and save them: a later failure does not lose them."""
        self.found[name] = value
        if self.rank == 0:
            self.file.write_text(json.dumps(self.found), encoding="utf-8")
        self.say(name)

    @property
    def plain(self) -> torch.device:
        """Where tensors of torch.distributed live: the simulated device has no collectives of its own."""
        return torch.device("cpu") if self.small else torch.device("cuda", self.rank)

    def agree(self, value: float) -> float:
        """The largest of the ranks' values, on all ranks; waits for all."""
        shared = torch.tensor([float(value)], dtype=torch.float64, device=self.plain)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return shared.item()

    def same(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's values on all ranks. (Small: the same already, by their seed.)"""
        if not self.small:
            dist.broadcast(tensor, 0)
        return tensor

    def wait(self) -> None:
        """All ranks are here, and their devices idle."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.agree(0)

    def group(self, weights: list[torch.Tensor]) -> Any:
        return Staged(weights, device="cpu") if self.small else lesson.Group(weights)


class Staged(lesson.Group):
    """A group of processes without a GPU, each with a simulated one: gathered in host memory, copied from there."""

    def buffer(self) -> torch.Tensor:
        return torch.empty(self.gpus * self.mine[0].numel(), dtype=self.mine[0].dtype, device="cuda")

    def gather(self, i: int, buffer: torch.Tensor) -> None:
        buffer.copy_(gathered(self.mine[i], self.gpus), non_blocking=True)


def gathered(mine: torch.Tensor, gpus: int) -> torch.Tensor:
    """The shards of all ranks, in pinned memory."""
    whole = torch.empty(gpus * mine.numel(), dtype=mine.dtype, pin_memory=True)
    lesson.all_gather(whole, mine)
    return whole


@contextmanager
def joined(world: World) -> Iterator[World]:
    """A process group around the block, and its GPU; small: a simulated one, which must see no race."""
    warnings.filterwarnings("ignore", category=FutureWarning)
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    torch.set_num_threads(1)
    if not world.small:
        torch.cuda.set_device(world.rank)
    more = {} if world.small else {"device_id": world.plain}
    dist.init_process_group("gloo" if world.small else "nccl", init_method=f"file://{world.store}", rank=world.rank,
                            world_size=world.ranks, timeout=TIMEOUT, **more)
    device = simgpu.session(simgpu.H200.scaled(SMALL_SCALE), keep="all") if world.small else nullcontext()
    try:
        with torch.no_grad(), device as simulated:
            torch.manual_seed(0)
            world.agree(0)
            yield world
            if simulated is not None and simulated.hazards:
                raise RuntimeError(f"a race: {simulated.hazards[0]}")
    finally:
        dist.destroy_process_group()
