"""Lab 01: critical paths, slack, what to speed up, bounds, and the double buffer as a task graph."""

from ..check import Check
from .bounds import judge_lower_bound
from .buffers import judge_double_buffer_graph
from .changes import judge_best_to_halve, judge_slack
from .paths import judge_critical_paths

check = Check({
    "critical_paths": judge_critical_paths,
    "slack": judge_slack,
    "best_to_halve": judge_best_to_halve,
    "lower_bound": judge_lower_bound,
    "double_buffer_graph": judge_double_buffer_graph,
})

__all__ = ["check"]
