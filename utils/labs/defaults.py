"""PyTorch's own default device and dtype while a check runs, whatever a notebook or an answer has set."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def usual_defaults() -> Iterator[str]:
    """Tensors are made on the CPU in float32 inside the block, and as before after it; gives what was set instead."""
    if "torch" not in sys.modules:   # a lab without tensors
        yield ""
        return
    import torch

    device, dtype = _default_device(), torch.get_default_dtype()
    _set_defaults(torch.device("cpu"), torch.float32)
    changed = [f"default {what} {value}" for what, value, usual in
               (("device", device.type, "cpu"), ("dtype", dtype, torch.float32)) if value != usual]
    try:
        yield " and ".join(changed)
    finally:
        _set_defaults(device, dtype)


def _default_device() -> Any:
    import torch

    try:
        return torch.get_default_device()
    except (RuntimeError, AssertionError):   # a CUDA device is the default, and there is none
        return torch.device("cuda")
    except AttributeError:   # torch 2.9 after set_default_device(None)
        return torch.device("cpu")


def _set_defaults(device: Any, dtype: Any) -> None:
    import torch

    torch.set_default_dtype(dtype)
    if _default_device() == device:
        return
    torch.set_default_device(None)   # which may uncover what a surrounding `with torch.device(...)` says
    context = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    if getattr(context, "device_context", "unset") is None:   # torch 2.9: get_default_device() stumbles over it
        del context.device_context
    if _default_device() != device:
        torch.set_default_device(device)
