"""Time stamps from a trace file, exact to the nanosecond.

Kineto writes microseconds with three decimals. A double holds them exactly up to 2^43 us (102 days), which is why
newer files count from ``baseTimeNanoseconds``. Absolute stamps such as 1790857026000000.123 need their digits read.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
from numpy.typing import NDArray

NS_PER_US = 1000
EXACT_DOUBLE_US = 2.0**43        # thousandths are further apart than doubles up to here
LIMIT_NS = 2**62                 # 146 years: sums and differences of two stamps still fit 64 bits
DECIMALS = Context(prec=60, rounding=ROUND_HALF_EVEN)


class BadStamp(ValueError):
    """One stamp of a list cannot be read."""

    def __init__(self, index: int, value: Any) -> None:
        super().__init__(f"{value!r} is not a time in microseconds")
        self.index, self.value = index, value


def stamps_ns(values: list[Any]) -> NDArray[np.int64] | None:
    """Microseconds as parsed from JSON, to int64 nanoseconds; None when doubles are too coarse and digits are needed.

    Numbers, and strings of digits, are accepted. Raises BadStamp with the index of the first value that is no time.
    """
    try:
        micro = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    if micro.ndim != 1 or (micro.size and not np.abs(micro).max() < EXACT_DOUBLE_US):      # also when one is NaN
        return None
    return np.rint(micro * NS_PER_US).astype(np.int64)


def digits_ns(values: list[Any]) -> NDArray[np.int64]:
    """Microseconds as text or numbers, to int64 nanoseconds, digit for digit."""
    plain = _plain_ns(values)
    if plain is not None:
        return plain
    return np.fromiter((_stamp_ns(value, index) for index, value in enumerate(values)), np.int64, len(values))


def _plain_ns(values: list[Any]) -> NDArray[np.int64] | None:
    """The usual case at once: every value is text with one to three decimals and no sign; None for anything else."""
    try:
        text = ",".join(values) + ","
    except TypeError:
        return None
    signs = np.frombuffer(text.encode(), dtype=np.uint8)
    points, commas = np.flatnonzero(signs == ord(".")), np.flatnonzero(signs == ord(","))
    if not len(points) == len(commas) == len(values):
        return None
    decimals = commas - points - 1
    wholes = np.diff(commas, prepend=-1) - decimals - 2          # digits before the point
    digits = int(((signs >= ord("0")) & (signs <= ord("9"))).sum())
    if decimals.min(initial=1) < 1 or decimals.max(initial=1) > 3 or wholes.min(initial=1) < 1:
        return None
    if wholes.max(initial=1) > 16 or digits != signs.size - 2 * len(values):
        return None
    numbers = np.fromstring(text.replace(".", ","), dtype=np.int64, sep=",")
    nano = numbers[0::2] * NS_PER_US + numbers[1::2] * 10 ** (3 - decimals)
    return nano if (nano < LIMIT_NS).all() else None


def _stamp_ns(value: Any, index: int) -> int:
    text = value if type(value) is str else repr(value) if type(value) in (int, float) else ""
    try:
        whole, _, part = text.partition(".")
        nano = int(whole + part.ljust(3, "0")) if len(part) <= 3 and part.isdigit() else _decimal_ns(text)
    except (ValueError, ArithmeticError):
        raise BadStamp(index, value) from None
    if not -LIMIT_NS < nano < LIMIT_NS:
        raise BadStamp(index, value)
    return nano


def _decimal_ns(text: str) -> int:
    micro = DECIMALS.create_decimal(text)
    if not micro.is_finite() or micro.adjusted() > 20:       # keeps 1e999999999 from being written out
        raise InvalidOperation
    return int(DECIMALS.multiply(micro, Decimal(NS_PER_US)).to_integral_value(ROUND_HALF_EVEN))
