"""Lab 09: all-gathers, what fits in shards, the queue of a link, and pipelines of GPUs."""

from collections.abc import Callable

from ..check import Check
from ..verdict import Picture
from .fitting import judge_what_fits
from .gathering import judge_gather_and_tokens
from .needed import judge_as_many_as_needed
from .ordering import drawn as orders_drawn
from .ordering import judge_stage_order
from .queueing import RATIOS, judge_link_queue
from .queueing import drawn as queue_drawn

check = Check({
    "gather_and_tokens": judge_gather_and_tokens,
    "what_fits": judge_what_fits,
    "link_queue": judge_link_queue,
    "stage_order": judge_stage_order,
    "as_many_as_needed": judge_as_many_as_needed,
})
TARGETS: dict[str, Callable[[], Picture | None]] = {
    "link_queue": lambda: queue_drawn(None, RATIOS[1]),
    "stage_order": lambda: orders_drawn(None),
}


def target(puzzle: str) -> Picture | None:
    """The timeline of the worked answer to a puzzle; raises ValueError for one without a timeline."""
    if puzzle not in TARGETS:
        raise ValueError(f"target({puzzle!r}): there is one of {', '.join(TARGETS)}")
    return TARGETS[puzzle]()


__all__ = ["check", "target"]
