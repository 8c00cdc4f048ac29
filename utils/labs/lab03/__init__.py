"""Lab 03: honest timing, peak memory, the break-even batch, and serial onload."""

from ..check import Check
from .onload import judge_serial_onload
from .peak import judge_peak_mib
from .rows import judge_break_even_rows
from .timing import judge_measure_ms

check = Check({
    "measure_ms": judge_measure_ms,
    "peak_mib": judge_peak_mib,
    "break_even_rows": judge_break_even_rows,
    "serial_onload": judge_serial_onload,
})

__all__ = ["check"]
