"""Lab 05: stores behind their writes, three lanes, two models in one memory, placement, and reload or recompute."""

from ..check import Check
from .place import judge_place_layers
from .reload import Prompt, judge_reload_up_to
from .show import show
from .steps import Job
from .store import judge_store_each
from .swap import judge_swap
from .three import judge_three_lanes

check = Check({
    "store_each": judge_store_each,
    "three_lanes": judge_three_lanes,
    "swap": judge_swap,
    "place_layers": judge_place_layers,
    "reload_up_to": judge_reload_up_to,
})

__all__ = ["Job", "Prompt", "check", "show"]
