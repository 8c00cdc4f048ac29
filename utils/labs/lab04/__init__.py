"""Lab 04: the double buffer, calls back to back, prefetching, rings, layers of unequal size, and missing edges."""

from ..check import Check
from .broken import show
from .double import judge_double_buffer
from .edges import judge_missing_edges
from .models import judge_back_to_back, judge_prefetching
from .ring import judge_ring_onload
from .slots import judge_slots_needed
from .unequal import judge_unequal

check = Check({
    "double_buffer": judge_double_buffer,
    "BackToBack": judge_back_to_back,
    "Prefetching": judge_prefetching,
    "RingOnload": judge_ring_onload,
    "slots_needed": judge_slots_needed,
    "unequal": judge_unequal,
    "missing_edges": judge_missing_edges,
})

__all__ = ["check", "show"]
