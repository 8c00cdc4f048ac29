"""More cases of known faults, where other tests left one out: each was wrong once, or would be easy to get wrong."""

from __future__ import annotations

import pytest
import torch
from simulated import busy
from trace_files import copy, kernel, text, write

from utils import simgpu
from utils.trace import Trace, TraceError, TraceWarning

NUMERICS = pytest.mark.parametrize("numerics", ["exact", "adversarial"])

# --- a race is no equal result, however it is compared

SAYS_EQUAL = {
    "equal": torch.equal,
    "all": lambda y, x: (y == x).all(),
    "no difference": lambda y, x: not (y != x).any(),
    "how many": lambda y, x: (y == x).sum() == y.numel(),
    "none below": lambda y, x: not (y < x).any() and not (y > x).any() and (y >= x).all() and (y <= x).all(),
    "within": lambda y, x: ((y - x).abs() < 1).all() if y.dtype is not torch.bool else torch.equal(y, x),
    "isclose": lambda y, x: torch.isclose(y, x).all(),
    "both ways": lambda y, x: ((y <= x) & (x <= y)).all(),
    "to the host": lambda y, x: (y == x).cpu().all(),
    "assert_close": lambda y, x: torch.testing.assert_close(y, x) is None,
}


def equal(how, y, x):
    try:
        return bool(SAYS_EQUAL[how](y, x))
    except AssertionError:
        return False


@NUMERICS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool], ids=str)
def test_s1_what_a_race_spoiled_equals_nothing(numerics, dtype):
    with simgpu.session(simgpu.H200, numerics=numerics) as gpu:
        host = torch.arange(64).remainder(2).to(dtype).pin_memory()
        for wait in (True, False):
            wanted, slot = host.to("cuda"), torch.empty_like(host, device="cuda")
            torch.cuda.synchronize()
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                busy()
                slot.copy_(host, non_blocking=True)
            if wait:
                torch.cuda.current_stream().wait_stream(stream)
            y = slot.clone()
            torch.cuda.synchronize()
            assert {how: equal(how, y, wanted) for how in SAYS_EQUAL} == dict.fromkeys(SAYS_EQUAL, wait)
        assert [hazard.kind for hazard in gpu.hazards] == ["RAW"]


# --- S12, S21: numpy writes into a source, after the right wait and before it


@NUMERICS
@pytest.mark.parametrize("how", ["stream", "event", "query", "device", "none", "in time"])
def test_s12_numpy_writes_after_a_wait(numerics, how):
    with simgpu.session(simgpu.H200, numerics=numerics) as gpu:
        slots, hosts = [[make(64) for _ in range(3)] for make in (lambda n: torch.zeros(n, device="cuda"), pinned)]
        torch.cuda.synchronize()
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        with torch.cuda.stream(stream):
            busy()
            for slot, host in zip(slots, hosts, strict=True):
                slot.copy_(host, non_blocking=True)
            event.record()
        if how == "query":
            while not event.query():
                pass
        elif how == "in time":
            simgpu.host_work(1e6, "long enough")
        elif how != "none":
            {"stream": stream, "event": event, "device": torch.cuda}[how].synchronize()
        hosts[1].numpy()[:] = 7
        torch.cuda.synchronize()
        values = [slot[0].item() for slot in slots]
        assert [hazard.kind for hazard in gpu.hazards] == (["WAR"] if how in ("none", "in time") else [])
        assert values == [1, 1, 1] or how in ("none", "in time")


def pinned(count):
    return torch.ones(count).pin_memory()


# --- T5: text that is mended inside a name, but not where it says what a row is


@pytest.mark.parametrize("old, new", [
    (b'"ph": "X"', b'"p\x01": "X"'), (b'"ph": "X"', b'"ph": "\t"'), (b'"cat": "kernel"', b'"cat": "ker\x00el"'),
    (b'"cat"', b'"c\xfft"'), (b'"cat": "kernel"', b'"cat": "kern\\l"')])
def test_t5_what_a_row_is_cannot_be_guessed(tmp_path, old, new):
    """Mended, that row would be none: half a trace."""
    data = text([copy("1.0"), kernel("2.0"), kernel("3.0")]).encode()
    at = data.index(b"kernel") - 30
    broken = data[:at] + data[at:].replace(old, new, 1)
    with pytest.raises(TraceError, match=r"t.json: byte 2\d\d: the text '.*' of this event is damaged"):
        Trace.load(write(tmp_path, broken))
    with pytest.warns(TraceWarning, match="mended 1 piece"):       # in a name it is
        assert len(Trace.load(write(tmp_path, data.replace(b'"gemm"', b'"ge\x01mm"', 1)))) == 3
