"""Tests run from the repository root, whatever directory pytest was started in."""

import gc
import sys
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

gc.set_threshold(20_000, 10, 10)    # of 700, as is usual, collections take a twentieth of all the time

# examples are the same on every machine and in every run; a slow machine is no failure
settings.register_profile("course", deadline=None, derandomize=True)
settings.load_profile("course")


@pytest.fixture(scope="module", autouse=True)
def settled_heap():
    """What is there before a module's tests stays: full garbage collections, which some ask for, pass over it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def gpu():
    """A simulated H200; files that need another one define their own."""
    from utils import simgpu

    with simgpu.session(simgpu.H200) as device:
        yield device
