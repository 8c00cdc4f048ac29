"""Lab 02: one wait, two waits, running ahead, reading a result, memory that is reused, and the gaps of a trace."""

from ..check import Check
from .gaps import judge_explain_gaps
from .host import judge_fetch, judge_sums_per_step
from .memory import judge_save_all
from .waits import judge_add_two, judge_load_while_computing

check = Check({
    "load_while_computing": judge_load_while_computing,
    "add_two": judge_add_two,
    "sums_per_step": judge_sums_per_step,
    "fetch": judge_fetch,
    "save_all": judge_save_all,
    "explain_gaps": judge_explain_gaps,
})

__all__ = ["check"]
