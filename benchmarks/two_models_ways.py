"""Ways of running one model and then another on one GPU: each has ``step``, as lesson 05's denoise() asks for it.

    ways start with model 0 on the GPU                 at the switch
    resident                both are there             nothing
    serial                  slots, one stream          all layers of model 1 are copied, then it runs
    as needed               slots, a copy stream       each layer runs as soon as it has come; as the host is ahead of
                                                       the GPU, copies into free slots start before the switch
    ... and synchronize     the same                   the host waits for model 0 first, as one does who shows progress
    ahead                   slots, a copy stream       layers come into slots that nobody needs, before the switch
    both streamed           two slots for each         nothing: every step copies all its layers
    model.to()              modules                    model 0 goes to host memory, then model 1 comes
    accelerate              modules with hooks         the same, when model 1 is called
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from benchmarks.onload_mlp import mark
from benchmarks.two_models_weights import Host, lesson, streaming
from utils import simgpu

RESIDENT, SERIAL, AHEAD, STREAMED = "both resident", "serial", "ahead", "both streamed"
NEEDED, NEEDED_WAIT = "as needed", "as needed, after a synchronize"
TO, TO_PAGEABLE, ACCELERATE = "model.to()", "model.to(), pageable", "accelerate cpu_offload_with_hook"
OURS, PEERS = (SERIAL, NEEDED_WAIT, NEEDED, AHEAD, STREAMED), (TO, ACCELERATE, TO_PAGEABLE)
STREAM_SLOTS = 2


class Way:
    """What all have: bytes copied back to the host so far; marks where the GPU waited for copies, if they are kept."""

    bytes_back = 0
    ahead = False
    waits: list[tuple[Any, Any]] | None = None

    def start_over(self) -> None:
        """To the state in which a window begins, after a step of model 0."""

    def close(self) -> None:
        """Leave the models as they were."""


# ---- with slots

class WatchedSwap(Way, lesson.Swap):
    """A Swap with an event before and behind each wait of the compute stream for a copy."""

    def __init__(self, host: Host, budget: int, working: int, ahead: bool):
        with host.lending():
            lesson.Swap.__init__(self, host.models, budget, working)
        self.ahead, self.waits = ahead, []

    @contextmanager
    def waiting(self) -> Iterator[None]:
        before = mark()
        yield
        self.waits.append((before, mark()))

    def run(self, key: tuple[int, int], *args: torch.Tensor) -> torch.Tensor:
        with self.waiting():
            torch.cuda.current_stream().wait_event(self.loaded[self.holds.index(key)])
        return super().run(key, *args)

    def start_over(self) -> None:
        self.waits.clear()


class WaitingSwap(WatchedSwap):
    """The host waits for the last step of a model before it asks for the next one's layers."""

    before = 0

    def step(self, x: torch.Tensor, args: tuple[Any, ...], m: int, *more: Any) -> torch.Tensor:
        if m != self.before:
            torch.cuda.synchronize()
        self.before = m
        return super().step(x, args, m, *more)


class SerialSwap(WatchedSwap):
    """The same slots, filled on the compute stream: it waits from the first copy to the last."""

    def __init__(self, host: Host, budget: int, working: int):
        super().__init__(host, budget, working, ahead=False)
        torch.cuda.synchronize()
        self.copying = torch.cuda.current_stream()

    def load_into(self, slots: list[int], missing: list[tuple[int, int]]) -> None:
        with self.waiting():
            super().load_into(slots, missing)


class Streamed(Way):
    """Lesson 04's StreamedLayers for each model."""

    def __init__(self, host: Host):
        with host.lending():
            self.models = [streaming.StreamedLayers(model, slots=STREAM_SLOTS) for model in host.models]

    def step(self, x: torch.Tensor, args: tuple[Any, ...], m: int, *_: Any) -> torch.Tensor:
        return self.models[m](x, *args)

    def start_over(self) -> None:
        torch.cuda.synchronize()
        for model in self.models:
            model.ring.restart()

    def close(self) -> None:
        for model in self.models:
            for layer in model.layers:
                del layer.forward


# ---- with modules

class Stack(nn.Module):
    def __init__(self, layers: list[nn.Module]):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, *args)
        return x

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.parameters())


class Resident(Way):
    def __init__(self, host: Host):
        self.models = [Stack([host.sizes.block({name: tensor.to("cuda") for name, tensor in tensors.items()})
                              for tensors in host.tensors(m)]) for m in range(2)]

    def step(self, x: torch.Tensor, args: tuple[Any, ...], m: int, *_: Any) -> torch.Tensor:
        return self.models[m](x, *args)


class Moved(Way):
    """One model goes to host memory (where PyTorch makes new, pageable tensors for it), then the other comes."""

    def __init__(self, host: Host, pageable: bool = False):
        self.models, self.here = [Stack(host.fresh(m)) for m in range(2)], 0
        if pageable:                    # as it is when nobody has pinned it
            for tensor in self.models[1].parameters():
                tensor.data = tensor.detach().clone()
        self.models[0].to("cuda")

    def step(self, x: torch.Tensor, args: tuple[Any, ...], m: int, *_: Any) -> torch.Tensor:
        if m != self.here:
            self.models[self.here].to("cpu")
            self.bytes_back += self.models[self.here].bytes
            self.models[m].to("cuda")
            self.here = m
        return self.models[m](x, *args)


class Hooked(Way):
    """accelerate's hooks, which diffusers' enable_model_cpu_offload() puts on the models of a pipeline."""

    def __init__(self, host: Host):
        from accelerate import cpu_offload_with_hook

        self.models, hook = [], None
        for m in range(2):
            model, hook = cpu_offload_with_hook(Stack(host.fresh(m)), torch.device("cuda:0"), prev_module_hook=hook)
            self.models.append(model)

    def step(self, x: torch.Tensor, args: tuple[Any, ...], m: int, *_: Any) -> torch.Tensor:
        was = [next(model.parameters()).device.type for model in self.models]
        y = self.models[m](x, *args)
        for model, before in zip(self.models, was, strict=True):
            if before == "cuda" and next(model.parameters()).device.type == "cpu":
                self.bytes_back += model.bytes
        return y


def makers(host: Host, budget: int) -> dict[str, Callable[[int], Any]]:
    """Makers of all ways that can run here, by name; they are called with the bytes of working memory."""
    found: dict[str, Callable[[int], Any]] = {
        RESIDENT: lambda working: Resident(host),
        SERIAL: lambda working: SerialSwap(host, budget, working),
        NEEDED_WAIT: lambda working: WaitingSwap(host, budget, working, ahead=False),
        NEEDED: lambda working: WatchedSwap(host, budget, working, ahead=False),
        AHEAD: lambda working: WatchedSwap(host, budget, working, ahead=True),
        STREAMED: lambda working: Streamed(host),
        TO: lambda working: Moved(host),
        TO_PAGEABLE: lambda working: Moved(host, pageable=True),
    }
    if simgpu.active() is None and importlib.util.find_spec("accelerate") is not None:
        found[ACCELERATE] = lambda working: Hooked(host)
    return found
