"""A limit of real time for one call of a learner's function: a loop that never ends is stopped.

A timer's signal does it (SIGALRM), so there is no limit on Windows, in other threads than the main one, nor where
somebody else has set an alarm. It cannot stop one call into C that never returns (``sum(itertools.count())``), or a
loop around all that is raised in it, BaseException too; nor can Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

LIMIT_S = 30.0      # of real time for one call, which usually takes some hundredths
GROWTH_MIB = 4096   # of the process's memory in one call: a loop that appends is stopped before all is gone
LOOK_S = 0.25       # from one look at the clock to the next
AGAIN_S = 0.02      # the same behind the limit, until the function has stopped
GRACE_S = 5.0       # behind the limit, in which no operation of the simulated device is broken off in its middle
SIMULATOR = str(Path(__file__).resolve().parents[1] / "simgpu")
_in_force = threading.local()


class Unreturned(BaseException):
    """Raised inside a function that takes too long. No Exception, which a learner's function may catch."""


class Limit:
    """``with Limit():`` raises Unreturned inside the block once it has taken LIMIT_S or GROWTH_MIB.

    Inside of another one it does nothing: the outer one holds. What was set before (the signal's handler, no timer) is
    set again behind the block.
    """

    def __init__(self) -> None:
        self.limit_s, self.began_s = LIMIT_S, time.monotonic()
        self.says = ""                     # once it is passed
        self.handler: Any = None           # of SIGALRM, before ours
        self.tracer: tuple[Any, ...] = ()   # of the interpreter, before ours; empty where it was left alone
        self.block: FrameType | None = None

    def __enter__(self) -> Limit:
        if getattr(_in_force, "limit", None) is None:
            _in_force.limit, self.block, self.peak_mib = self, sys._getframe(1), _peak_mib()
            self._set_timer()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self.block is None:
            return
        if self.tracer:
            sys.settrace(self.tracer[0])
        if self.handler is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if signal.getsignal(signal.SIGALRM) != self.handler:
                signal.signal(signal.SIGALRM, self.handler)
        self.block = _in_force.limit = None

    # who looks at the clock

    def _set_timer(self) -> None:
        """Where the signal is free to be used."""
        if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
            return
        if signal.getitimer(signal.ITIMER_REAL)[0] > 0 or signal.getsignal(signal.SIGALRM) is None:
            return
        self.handler = signal.signal(signal.SIGALRM, self._rang)
        signal.setitimer(signal.ITIMER_REAL, min(LOOK_S, self.limit_s))

    def _rang(self, _: int, frame: FrameType | None) -> None:
        if not self._inside(frame):
            self._end()
            return
        late = self._passed()
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S if late else LOOK_S)
        if late and self._may_stop(frame):
            raise Unreturned
        outside = self._outside(frame) if late else None
        if outside is not None and outside.f_trace != self._came_out:
            self.tracer = self.tracer or (sys.gettrace(),)
            outside.f_trace = self._came_out
            sys.settrace(_look_at_lines)

    def _came_out(self, frame: FrameType, *_: Any) -> None:
        """An operation of the simulated device is over."""
        frame.f_trace = None
        raise Unreturned

    # what is seen then

    def _passed(self) -> bool:
        took_s, grown_mib = time.monotonic() - self.began_s, _peak_mib() - self.peak_mib
        if took_s >= self.limit_s:
            self.says = self.says or f"had not returned after {self.limit_s:g} s"
        elif grown_mib >= GROWTH_MIB:
            self.says = self.says or f"had not returned when it had taken {grown_mib / 1024:.0f} GiB of memory"
        return bool(self.says)

    def _inside(self, frame: FrameType | None) -> bool:
        """Whether the block is still running."""
        while frame is not None and frame is not self.block:
            frame = frame.f_back
        return frame is not None

    def _may_stop(self, frame: FrameType | None) -> bool:
        """Whether an exception does no harm: not here, and not in the simulated device unless it takes too long."""
        if frame is None or (frame.f_code.co_filename == __file__ and frame.f_code is not _look_at_lines.__code__):
            return False
        return self._outside(frame) is frame or time.monotonic() > self.began_s + self.limit_s + GRACE_S

    def _outside(self, frame: FrameType | None) -> FrameType | None:
        """The frame itself, or the one that has called an operation of the simulated device, if that is a learner's."""
        found = at = frame
        while at is not None and at is not self.block:
            if at.f_code.co_filename.startswith(SIMULATOR):
                found = at.f_back
            at = at.f_back
        return found if found is not self.block or found is frame else None


def _look_at_lines(*_: Any) -> None:
    """Set as the interpreter's tracer, it makes the f_trace of frames count, and traces nothing itself."""


def _peak_mib() -> float:
    """The most memory that this process ever had; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
