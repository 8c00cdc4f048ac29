"""What several tests of the simulated device start from."""

import torch


def pinned_ones(*shape):
    """Pinned host memory full of ones."""
    return torch.ones(*shape).pin_memory()


def busy(ms: float = 1.0) -> None:
    """Keep the current stream occupied."""
    torch.cuda._sleep(int(ms * 1e6))
