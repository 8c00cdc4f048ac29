"""Lab 05: stores behind their writes, three lanes through three slots, and two models in one memory."""

from ..check import Check
from .show import show
from .store import judge_store_each
from .swap import judge_swap
from .three import judge_three_lanes

check = Check({
    "store_each": judge_store_each,
    "three_lanes": judge_three_lanes,
    "swap": judge_swap,
})

__all__ = ["check", "show"]
