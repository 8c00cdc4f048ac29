"""Read and show whatever a learner's function returned, without ever failing on it."""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

TOLERANCE = 1e-9   # relative: what rounding can do to a right answer
LONGEST = 60       # characters of a value in a verdict


def number(value: Any) -> float | int | Any | None:
    """The value as a finite Python number (numpy scalars and Decimals too), or None when it is not one number."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.item() if value.size == 1 else None
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:   # an int that no float can hold
        return None


def same(given: Any, wanted: Any) -> bool:
    """Whether a learner's value is the wanted number, up to rounding."""
    seen = number(given)
    return seen is not None and abs(seen - wanted) <= TOLERANCE * max(1, abs(wanted))


def shown(value: Any) -> str:
    """A value in at most LONGEST characters, numbers without needless digits."""
    plain = number(value)
    try:
        text = f"{float(plain):g}" if plain is not None else repr(value)
    except Exception:   # a learner's __repr__ may do anything
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def text_of(error: BaseException) -> str:
    """The type and message of an exception, shortened."""
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = ""
    message = message if len(message) <= 4 * LONGEST else message[: 4 * LONGEST] + "…"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
