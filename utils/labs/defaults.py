"""PyTorch's own defaults while a check runs, whatever a notebook has set, and behind it what the notebook had set."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def usual_defaults() -> Iterator[str]:
    """Tensors are made on the CPU in float32 inside the block, and as before after it; gives what was set instead.

    What an answer sets besides (gradients, threads, precision, determinism) is set back, too.
    """
    if "torch" not in sys.modules:   # a lab without tensors
        yield ""
        return
    import torch

    device, dtype = _default_device(), torch.get_default_dtype()
    _set_defaults(torch.device("cpu"), torch.float32)
    changed = [f"default {what} {value}" for what, value, usual in
               (("device", device.type, "cpu"), ("dtype", dtype, torch.float32)) if value != usual]
    try:
        with _others_set_back():
            yield " and ".join(changed)
    finally:
        _set_defaults(device, dtype)


@contextmanager
def _others_set_back() -> Iterator[None]:
    import torch

    kept = [(get, put, _seen(get)) for get, put in _others()]
    try:
        with torch.inference_mode(False):   # tensors of the labs are kept from check to check: they have to be ordinary
            yield
    finally:
        for get, put, value in kept:
            if value is not None and _seen(get) != value:
                put(value)


def _others() -> list[tuple[Callable[[], Any], Callable[[Any], None]]]:
    import torch

    found = [(torch.is_grad_enabled, torch.set_grad_enabled), (torch.get_num_threads, torch.set_num_threads),
             (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
             (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)]
    for owner in (torch.backends, torch.backends.cuda.matmul):
        if hasattr(owner, "fp32_precision"):
            found.append((partial(getattr, owner, "fp32_precision"), partial(setattr, owner, "fp32_precision")))
    return found


def _seen(get: Callable[[], Any]) -> Any:
    """A setting's value; None where PyTorch does not tell, as when its old and new ways to set one are mixed."""
    try:
        return get()
    except RuntimeError:
        return None


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
