"""utils.intervals against sets of unit cells on a small integer grid."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.intervals import clip, intersect, measure, subtract, union

PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=12)


def cells(pairs):
    return {cell for start, end in pairs for cell in range(start, end)}


def as_union(pairs):
    return union([start for start, _ in pairs], [end for _, end in pairs])


def as_cells(intervals):
    return cells((int(start), int(end)) for start, end in zip(*intervals, strict=True))


@given(PAIRS)
def test_union_is_sorted_disjoint_and_covers_the_same_time(pairs):
    starts, ends = as_union(pairs)
    assert as_cells((starts, ends)) == cells(pairs)
    assert (ends > starts).all()
    assert (starts[1:] > ends[:-1]).all()   # strictly: touching intervals are joined


@given(PAIRS, PAIRS)
def test_intersect_and_subtract_are_set_operations(first, second):
    a, b = as_union(first), as_union(second)
    assert as_cells(intersect(a, b)) == cells(first) & cells(second)
    assert as_cells(subtract(a, b)) == cells(first) - cells(second)
    assert measure(intersect(a, b)) + measure(subtract(a, b)) == measure(a)


@given(PAIRS, st.integers(0, 30), st.integers(0, 30))
def test_clip_keeps_the_window(pairs, start, stop):
    assert as_cells(clip(as_union(pairs), start, stop)) == cells(pairs) & set(range(start, stop))


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="2 starts but 1 ends"):
        union([1, 2], [3])
    with pytest.raises(ValueError, match="NaN"):
        union([1.0, np.nan], [2.0, 3.0])
