"""Lab 08: static inputs, buckets captured before serving, two graphs in one pool, carry-over, inside or outside."""

from ..check import Check
from .again import judge_carry_over
from .buckets import Bucketing, judge_Bucketed
from .places import judge_inside_or_outside
from .pools import Pools, judge_TwoGraphs
from .show import shower
from .static import Graphed, judge_graphed

check = Check({
    "graphed": judge_graphed,
    "Bucketed": judge_Bucketed,
    "TwoGraphs": judge_TwoGraphs,
    "carry_over": judge_carry_over,
    "inside_or_outside": judge_inside_or_outside,
})

target = shower({"graphed": Graphed(), "Bucketed": Bucketing(), "TwoGraphs": Pools()})

__all__ = ["check", "target"]
