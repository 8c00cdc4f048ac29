"""Lab 07: two slots, edges between three streams, carry-over, the loop, who stops, and the wall time."""

from ..check import Check
from .carrying import judge_CarryOver
from .launching import Lanes, judge_launch
from .looping import Loop, judge_serve
from .slots import judge_two_slots
from .stopping import Serving
from .stops import judge_Stopping
from .wall import judge_wall_ms

check = Check({
    "two_slots": judge_two_slots,
    "launch": judge_launch,
    "CarryOver": judge_CarryOver,
    "serve": judge_serve,
    "Stopping": judge_Stopping,
    "wall_ms": judge_wall_ms,
})

__all__ = ["Lanes", "Loop", "Serving", "check"]
