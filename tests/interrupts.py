"""Errors in the middle of a step: a layer that fails, or Ctrl-C behind any operation."""

from __future__ import annotations

from torch.overrides import TorchFunctionMode


class Broken(Exception):
    """What a test makes fail."""


class Interrupts(TorchFunctionMode):
    """Raises once, behind the n-th operation on tensors."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def __torch_function__(self, func, types, args=(), kwargs=None):
        y = func(*args, **(kwargs or {}))
        self.left -= 1
        if self.left == -1:
            raise Broken
        return y
