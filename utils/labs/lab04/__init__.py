"""Lab 04: the double buffer, calls back to back, prefetching, rings, layers of unequal size, and missing edges."""

from ..check import Check
from .double import judge_double_buffer
from .models import judge_back_to_back, judge_prefetching

check = Check({
    "double_buffer": judge_double_buffer,
    "BackToBack": judge_back_to_back,
    "Prefetching": judge_prefetching,
})

__all__ = ["check"]
