"""Units of time and numbers that are pleasant to read."""

from __future__ import annotations

import math
from collections.abc import Iterable

US_PER_UNIT = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
SHOWN = {"us": "µs"}
ENOUGH = 2            # switch to a larger unit once the axis is this many of it
TOO_MANY = 20_000     # a declared unit is kept while the axis is at most this many of it
DIGITS = 4            # significant digits of a time


def axis_unit(unit: str, span: float, *, keep: bool = False) -> tuple[str, float]:
    """Name of the unit in which ``span`` (in ``unit``) reads well, and the factor from ``unit`` to it.

    ``keep``: stay with ``unit`` unless the numbers get unreadable. Words that are no time unit stay as they are.
    """
    if unit not in US_PER_UNIT:
        return unit, 1.0
    if keep and 0.5 <= span <= TOO_MANY:
        return SHOWN.get(unit, unit), 1.0
    span_us = span * US_PER_UNIT[unit]
    fitting = [name for name in ("ns", "us", "ms", "s") if span_us >= ENOUGH * US_PER_UNIT[name]]
    name = fitting[-1] if fitting else "ns"
    return SHOWN.get(name, name), US_PER_UNIT[unit] / US_PER_UNIT[name]


def decimals_for(values: Iterable[float]) -> int:
    """Decimals with which the largest of ``values`` shows four significant digits, fewer when none is needed."""
    numbers = [abs(value) for value in values if math.isfinite(value)]
    largest = max(numbers, default=0.0)
    most = DIGITS - 1 - math.floor(math.log10(largest)) if largest > 0 else 0
    most = min(max(most, 0), 6)
    for decimals in range(most):
        if all(abs(round(value, decimals) - value) < 0.5 * 10 ** -(most + 1) for value in numbers):
            return decimals
    return most


def number(value: float, decimals: int | None = None) -> str:
    """``value`` with ``decimals`` decimals (by default as few as four significant digits need), never "-0"."""
    places = decimals_for([value]) if decimals is None else decimals
    rounded = round(float(value), places)
    return f"{rounded + 0.0:.{places}f}"


def quantity(value: float, unit: str, decimals: int | None = None) -> str:
    """A number and its unit: ``"2.43 ms"``."""
    return f"{number(value, decimals)} {unit}".rstrip()


def nice_step(span: float, count: int) -> float:
    """The smallest of 1, 2 or 5 times a power of ten that cuts ``span`` into at most ``count`` steps."""
    rough = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= rough * (1 - 1e-9)), 10 * power)


def ticks(start: float, stop: float, count: int) -> tuple[list[float], int]:
    """Round positions from ``start`` to ``stop`` and the decimals to print them with."""
    step = nice_step(stop - start, count)
    first = math.ceil(start / step - 1e-9)
    last = math.floor(stop / step + 1e-9)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [index * step for index in range(first, last + 1)], decimals
