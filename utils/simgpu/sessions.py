"""Which simulated device is active: sessions stack, an inner one suspends the outer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .profiles import RTX_5060_LAPTOP, Profile

if TYPE_CHECKING:
    from .device import SimDevice

_stack: list[SimDevice] = []
_recorders: list[Any] = []  # what recorded before each session


def active() -> SimDevice | None:
    """The simulated device in use, None outside of any session."""
    return _stack[-1] if _stack else None


def require(what: str) -> SimDevice:
    """The active device; an error that names ``what`` when there is none."""
    if not _stack:
        raise RuntimeError(
            f"{what}: no simulated device is active; use it inside simgpu.session(...) or after simgpu.install(...)"
        )
    return _stack[-1]


@contextmanager
def session(
    profile: Profile = RTX_5060_LAPTOP, *, numerics: str = "exact", on_hazard: str = "record", keep: str = "all"
) -> Iterator[SimDevice]:
    """Stand in for the CUDA device inside the block; torch.cuda is restored after it, also on error.

    ``numerics``: "exact" computes values at their simulated time, "adversarial" makes every unordered access go wrong,
    "shapes" computes none. ``on_hazard``: "record" or "raise" (HazardError at the call). ``keep``: "all" or "none" (no
    trace and no graph; memory stays bounded). A normal exit runs pending work and raises what failed in it.
    """
    device = _push(profile, numerics, on_hazard, keep)
    try:
        yield device
    except BaseException:
        _end_inner(device)
        _pop(device, failed=True)
        raise
    left = _end_inner(device)
    _pop(device, failed=False)
    if left:
        raise RuntimeError(
            f"simgpu.install() inside a session was still active at its end (simulated {', '.join(left)}); it has been "
            "ended, torch.cuda is restored: call simgpu.uninstall() before the session ends"
        )


def _end_inner(device: SimDevice) -> list[str]:
    """End what is still active inside a session; its names."""
    left = []
    while device in _stack and _stack[-1] is not device:
        left.append(_stack[-1].profile.name)
        _pop(_stack[-1], failed=True)
    return left


def install(
    profile: Profile = RTX_5060_LAPTOP, *, numerics: str = "exact", on_hazard: str = "record", keep: str = "all"
) -> SimDevice:
    """Stand in for the CUDA device until ``uninstall()``; returns the device."""
    return _push(profile, numerics, on_hazard, keep)


def uninstall() -> None:
    """End the most recent ``install``."""
    if not _stack:
        raise RuntimeError("simgpu.uninstall(): no simulated device is installed")
    _pop(_stack[-1], failed=False)


def _push(profile: Profile, numerics: str, on_hazard: str, keep: str) -> SimDevice:
    if not isinstance(profile, Profile):
        raise TypeError(f"expected a profile such as simgpu.RTX_5060_LAPTOP, not {profile!r}")
    from . import patch
    from .device import SimDevice
    from .record import recorder

    device = SimDevice(profile, numerics=numerics, on_hazard=on_hazard, keep=keep)
    if not _stack:
        patch.apply()
    if _stack:
        _stack[-1].active = False
    _stack.append(device)
    device.active = True
    _recorders.append(_register(recorder(device)))
    return device


def _pop(device: SimDevice, *, failed: bool) -> None:
    from . import patch

    if not _stack or _stack[-1] is not device:
        raise RuntimeError("simulated devices must end in reverse order: an inner session or install is still active")
    try:
        device.close(failed=failed)
    finally:
        _stack.pop().active = False
        if _stack:
            _stack[-1].active = True
        _register(_recorders.pop())
        if not _stack:
            patch.restore()


def _register(recorder: Any) -> Any:
    """Tell ``utils.trace.record`` which device is active, where traces can be read at all."""
    try:
        from ..trace import register_recorder
    except ImportError:
        return None
    return register_recorder(recorder)


def check_index(device: Any) -> None:
    """There is one simulated device, number 0."""
    index = getattr(device, "index", device) if not isinstance(device, str) else None
    if isinstance(device, str):
        kind, _, number = device.partition(":")
        index = int(number) if number else None
        if kind != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {device}")
    elif getattr(device, "type", "cuda") != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {device}")
    if index not in (None, 0, -1):
        raise RuntimeError(
            f"CUDA error: invalid device ordinal ({index}); the simulated machine has one device, number 0"
        )


def clock() -> float:
    """The host's virtual time in microseconds; ``time.perf_counter`` in microseconds where no device is simulated."""
    device = active()
    if device is not None:
        return device.machine.host_ns / 1000
    import time

    return time.perf_counter() * 1e6


def host_work(us: float, name: str = "host work") -> None:
    """The host is busy for ``us`` virtual microseconds; on a real GPU only a range of that name in traces."""
    if not us >= 0:
        raise ValueError(f"host_work takes a time of at least 0 us, not {us!r}")
    device = active()
    if device is not None:
        device.machine.spend(round(us * 1000), name)
        return
    from torch.profiler import record_function

    with record_function(name):
        pass
