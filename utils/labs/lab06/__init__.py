"""Lab 06: idle share, speed-up, continuous admission, chunked prefill, and slots that are freed once."""

from ..check import Check
from .admit import judge_admit
from .chunks import judge_chunk_rows
from .gain import judge_speedup
from .idle import Span, judge_idle_share
from .release import judge_Releasing
from .serving import Serving

check = Check({
    "idle_share": judge_idle_share,
    "speedup": judge_speedup,
    "admit": judge_admit,
    "chunk_rows": judge_chunk_rows,
    "Releasing": judge_Releasing,
})

__all__ = ["Serving", "Span", "check"]
