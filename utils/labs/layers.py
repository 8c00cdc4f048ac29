"""What labs of many layers compute with: layers and inputs, all different, whose products are exact in float32."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from .defaults import usual_defaults  # what is kept for later runs does not depend on what a notebook has set
from .device import WIDTH
from .exact import digest, kind_of, permutation

ROWS = WIDTH // 4                 # of x: activations are small beside a layer, as where onload pays
FLOPS = 2 * ROWS * WIDTH**2       # of one product
WEIGHT_BYTES = 4 * WIDTH**2
LARGEST = 2**15                   # of an entry: float16, bfloat16 and TF32 round most such numbers, float32 none


@lru_cache(maxsize=256)
@usual_defaults()
def layer(number: int) -> Any:
    """The weights of a layer on the host: a permutation, another for every number."""
    return permutation(400 + number)


@lru_cache(maxsize=64)
@usual_defaults()
def batch(number: int, rows: int = ROWS) -> Any:
    """An input on the host, (rows, WIDTH) whole numbers, another for every number."""
    import torch

    draw = torch.Generator().manual_seed(900 + number)
    return torch.randint(1, LARGEST, (rows, WIDTH), generator=draw).float()


@lru_cache(maxsize=256)
@usual_defaults()
def expected(number: int, rows: int, layers: int) -> Any:
    """The digest of ``batch`` after ``layers`` layers."""
    x = batch(number, rows)
    for i in range(layers):
        x = x @ layer(i)
    return digest(x)


@usual_defaults()
def digest_of(value: Any, rows: int = ROWS) -> float | str:
    """The digest of a (rows, WIDTH) tensor on the GPU; what it is instead, in words, for anything else."""
    import torch

    if not isinstance(value, torch.Tensor):
        return "a float" if isinstance(value, float) else kind_of(value)
    if not value.is_cuda:
        return "a tensor on the CPU"
    if value.shape != (rows, WIDTH) or value.dtype != torch.float32:
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    return digest(value)


def pinned(layers: int) -> list[Any]:
    """Fresh pinned copies of the first ``layers`` layers, with names."""
    from .. import simgpu

    return [simgpu.name(layer(i).clone().pin_memory(), f"host_weights[{i}]") for i in range(layers)]


def same(given: Any, wanted: Any) -> bool:
    """Whether a tensor still holds what the host put there."""
    return given.shape == wanted.shape and bool((given.cpu() == wanted).all())


def changed(given: Sequence[Any], layers: int) -> bool:
    """Whether pinned copies no longer hold the layers they were made of."""
    return any(not bool((weight == layer(i)).all()) for i, weight in zip(range(layers), given, strict=True))


def bytes_taken(since_us: float) -> int:
    """Device memory that was taken since a time of the host's clock, freed or not."""
    from .. import simgpu

    memory = simgpu.active().trace().memory
    steps = zip(memory.us[1:], memory.bytes[1:] - memory.bytes[:-1], strict=True)
    return int(sum(step for us, step in steps if us >= since_us and step > 0))
