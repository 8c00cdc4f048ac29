"""How the simulated device queues kernels, and where their random numbers come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from . import attention
from .costs import estimate
from .geometry import Geometry, dense
from .infer import OpInfo
from .ops import Op
from .task import Task
from .tensor import SimTensor
from .values import Ref, plain_torch
from .watch import NOBODYS, find_block

if TYPE_CHECKING:
    from .device import SimDevice

HALVES = (torch.float16, torch.bfloat16)


class Kernels:
    """The methods of ``SimDevice`` that queue work on the compute engine."""

    def body(
        self: SimDevice,
        info: OpInfo,
        args: tuple,
        kwargs: dict,
        reads: Sequence[SimTensor],
        outputs: Sequence[SimTensor],
        changed: Sequence[SimTensor],
    ) -> Task:
        """The computation behind a kernel."""
        kwargs = {k: ("cpu" if k == "device" and v is not None else v) for k, v in kwargs.items()}
        call = attention.attend if info.name == attention.NAME else info.func
        if info.random:
            call = self.drawn_from(kwargs.pop("generator", None), info.func)
        return Task(
            info.name,
            call,
            tuple([_kept(value) for value in args]),
            {word: _kept(value) for word, value in kwargs.items()},
            [_ref(t) for t in reads],
            [_ref(t) for t in outputs],
            [_ref(t) for t in changed],
            self.report,
            pointwise=info.pointwise,
            widen=info.widen and bool(reads) and reads[0].geometry.dtype in HALVES,
        )

    def kernel(
        self: SimDevice,
        name: str,
        inputs: Sequence[Geometry],
        reads: Sequence[SimTensor],
        writes: Sequence[SimTensor],
        body: Any,
        kind: str = "kernel",
    ) -> Op:
        """Queue a kernel that is not an operator of its own."""
        cost = estimate(self.profile, name, inputs, [t.geometry for t in writes])
        return self.machine.launch(
            self.queue,
            name,
            kind,
            "compute",
            cost.work,
            share=cost.share,
            reads=[t.place for t in reads],
            writes=[t.place for t in writes],
            run=body if self.values else None,
        )

    def factory(self: SimDevice, name: str, g: Geometry, call: Any) -> SimTensor:
        """A new tensor whose values ``call()`` makes on the CPU when the kernel runs."""
        tensor = self.new(g, self.queue)
        self.fill_with(name, tensor, call)
        return tensor

    def fill_with(self: SimDevice, name: str, tensor: SimTensor, call: Any) -> None:
        """Queue a kernel that writes what ``call()`` makes on the CPU."""
        body = Task(name, call, (), {}, [], [_ref(tensor)], [], self.report) if self.values else None
        self.kernel(name, [], [], [tensor], body)

    def constant(self: SimDevice, name: str, value: torch.Tensor, reads: Sequence[SimTensor]) -> SimTensor:
        """A new tensor with values that are known already."""
        tensor = self.new(dense(tuple(value.shape), value.dtype), self.queue)
        refs = [_ref(t) for t in reads]
        self.kernel(
            name,
            [t.geometry for t in reads],
            reads,
            [tensor],
            Task("constant", lambda: value, (), {}, refs, [_ref(tensor)], [], self.report),
        )
        return tensor

    def drawn_from(self: SimDevice, generator: torch.Generator | None, call: Any) -> Any:
        """``call`` with random numbers of ``generator``, None for the device's own; its state moves at the call."""
        if generator is None:
            return self.seeded(call)
        with plain_torch():
            return self.seeded_with(int(torch.randint(1 << 62, (), generator=generator)), call)

    def seeded(self: SimDevice, call: Any) -> Any:
        """``call`` with its own random numbers, drawn in call order."""
        self.draws += 1
        seeded = self.seeded_with(hash((self.seed, self.draws)) & 0x7FFF_FFFF_FFFF, call)
        seeded.renew = lambda: self.seeded(call)
        return seeded

    def seeded_with(self: SimDevice, seed: int, call: Any) -> Any:
        """``call`` with the CPU generator at ``seed``, put back afterwards."""

        def run(*args: Any, **kwargs: Any) -> Any:
            state = torch.random.get_rng_state()
            torch.random.default_generator.manual_seed(seed)
            try:
                return call(*args, **kwargs)
            finally:
                torch.random.set_rng_state(state)

        return run

    def report(self: SimDevice, op: Op, ref: Ref) -> None:
        """A kernel read bytes that nothing had written."""
        block = find_block(ref.space, ref.start)
        label = block.label if block else NOBODYS
        if (op.name, op.queue, label) not in self._reported:
            self._reported.add((op.name, op.queue, label))
            self.machine.note(
                "read before written",
                f"{op.name} #{op.index} ({op.queue.name}) read {label} before anything was written there",
            )



def _ref(tensor: SimTensor) -> Ref:
    return Ref(tensor.memory.block.space, tensor.start, tensor.geometry)


def _kept(value: Any) -> Any:
    """What a kernel keeps of an argument: where tensors are, and copies of CPU scalars, which are read at the call."""
    if isinstance(value, SimTensor):
        return _ref(value)
    if isinstance(value, torch.Tensor):
        with plain_torch():
            return value.clone()
    if isinstance(value, (list, tuple)):
        items = [_kept(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value
