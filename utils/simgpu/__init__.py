"""A simulated CUDA device: ordinary torch.cuda programs in virtual time, with their races found.

>>> with session(RTX_5060_LAPTOP) as gpu:
...     ...                                 # ordinary torch.cuda code
>>> gpu.hazards, gpu.notes, gpu.elapsed_ms, gpu.trace(), gpu.graph()

Importing this does not import torch; the first session does.

What cannot be seen: reads of pinned memory through numpy, and which rows an operator with an index tensor touches, so
``index_copy_``, ``scatter_`` and their like count as writing their whole tensor. Several host threads take turns and
count as one, so nothing between them is a race. Gradients, autocast and other devices are not modelled and say so.
"""

from __future__ import annotations

from typing import Any

from .ops import Access, Hazard, HazardError, Note, Unsupported
from .profiles import A100, H200, RTX_4090, RTX_5060_LAPTOP, T4, Profile
from .record import retime
from .sessions import active, clock, host_work, install, session, uninstall

__all__ = [
    "A100",
    "H200",
    "RTX_4090",
    "RTX_5060_LAPTOP",
    "T4",
    "Access",
    "Hazard",
    "HazardError",
    "Note",
    "Profile",
    "Unsupported",
    "active",
    "clock",
    "host_work",
    "install",
    "name",
    "retime",
    "session",
    "uninstall",
]


def name(thing: Any, label: str) -> Any:
    """Call the memory of a tensor, or a stream, ``label`` in hazards and traces; returns ``thing``."""
    from .tensor import name as name_it

    return name_it(thing, label)
