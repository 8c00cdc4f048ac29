"""A learner's function that never returns is stopped and refused, and nothing of it is left behind."""

import functools
import signal
import sys
import threading
import time

import pytest
import torch

from utils import simgpu
from utils.labs import timelimit
from utils.labs.check import Check, call
from utils.labs.device import Setting, run_once
from utils.labs.verdict import Tick, Verdict

posix = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """A limit that a test can wait for."""
    monkeypatch.setattr(timelimit, "LIMIT_S", 0.1)
    monkeypatch.setattr(timelimit, "AGAIN_S", 0.01)


@pytest.fixture
def way(monkeypatch):
    """Where there is a timer."""
    if not hasattr(signal, "setitimer"):
        pytest.skip("no timers here")
    monkeypatch.setattr(timelimit, "GRACE_S", 60.0)
    return "timer"


def judge(puzzle, answer, *arguments):
    """A verdict on an answer that has only to return."""
    def judged(given):
        call(puzzle, given, *arguments, on="a case")
        return Verdict(puzzle, [Tick("correct", True)])
    answer.__name__ = puzzle
    return Check({puzzle: judged}).judge(answer)


def on_device(answer):
    """A verdict on a device program."""
    setting = Setting("f", lambda: ((torch.ones(256, 256, device="cuda"),), None),
                      lambda result, _: float(result.sum()), simgpu.RTX_5060_LAPTOP)

    def judged(given):
        assert run_once(setting, given, 1.0).value == 65536.0
        return Verdict("f", [Tick("correct", True)])
    answer.__name__ = "f"
    return Check({"f": judged}).judge(answer)


def endless():
    while True:
        pass


def never_changes():
    left = 3
    while left > 0:
        waited = left - 1
    return waited


def catches_all():
    while True:
        try:   # noqa: SIM105
            never_changes()
        except Exception:
            pass


def catches_more():
    tries = 0
    while True:
        try:   # noqa: SIM105
            tries += 1
        except BaseException:
            pass


def returns_in_time():
    return 1


def catches_and_returns():
    try:
        never_changes()
    except BaseException:
        return 1


def raises_another():
    try:
        never_changes()
    finally:
        raise ValueError("cleaning up failed")


only_between = pytest.mark.skipif(sys.version_info < (3, 11), reason="3.10 looks at signals inside of the try alone")


@pytest.mark.parametrize("answer", [endless, never_changes, catches_all, pytest.param(catches_more, marks=only_between),
                                    catches_and_returns, raises_another])
def test_a_loop_that_never_ends_is_refused(way, answer):
    verdict = judge("f", answer)
    assert [(tick.name, tick.holds, tick.why) for tick in verdict.ticks] == [
        ("correct", False, "it did not return on a case")]
    assert verdict.says.startswith("your function had not returned after 0.1 s: is there a loop that never ends?")
    assert not verdict.passed and not verdict.pending
    assert judge("f", returns_in_time).passed


def test_the_verdict_shows_the_line(way):
    source = "def f():\n    while True:\n        pass\n"
    space = {}
    exec(compile(source, "the cell", "exec"), space)
    line = judge("f", space["f"]).says.split("\n")[1]
    assert line.startswith(("Line 2 of its cell", "Line 3 of its cell"))


def test_a_loop_that_takes_all_memory_is_stopped_before(way, monkeypatch):
    held = []

    def f():
        while True:
            held.append(1)
    monkeypatch.setattr(timelimit, "LIMIT_S", 60.0)
    monkeypatch.setattr(timelimit, "LOOK_S", 0.02)
    monkeypatch.setattr(timelimit, "GROWTH_MIB", 1024)
    monkeypatch.setattr(timelimit, "_peak_mib", lambda: 2048.0 if held else 0.0)
    assert "had not returned when it had taken 2 GiB of memory: is there a loop" in judge("f", f).says


def launches(x):
    while True:
        x = x @ x


def records(x):
    while True:
        torch.cuda.Event().record()


def copies(x):
    out, other = torch.empty(256, 256).pin_memory(), torch.cuda.Stream()
    while True:
        with torch.cuda.stream(other):
            out.copy_(x, non_blocking=True)


def asks(x):
    done = torch.cuda.Event()
    with torch.cuda.stream(torch.cuda.Stream()):
        while True:
            done.query()
            time.sleep(0.001)


def keeps(x):
    kept = []
    while True:
        kept.append(x.sum().item())


def right(x):
    return x * 1


@pytest.mark.parametrize("answer", [launches, records, copies, asks, keeps])
def test_an_endless_device_program_leaves_nothing_behind(way, answer, monkeypatch):
    broken = []
    monkeypatch.setattr(timelimit.Limit, "_may_stop", spying(broken))
    tracer = sys.gettrace()
    before = torch.cuda.current_stream, torch.cuda.is_available(), time.sleep, torch.get_num_threads()
    assert "had not returned after 0.1 s" in on_device(answer).says
    assert way == "thread" or broken == []
    assert sys.gettrace() is tracer
    assert simgpu.active() is None
    assert before == (torch.cuda.current_stream, torch.cuda.is_available(), time.sleep, torch.get_num_threads())
    assert on_device(right).passed


def spying(broken):
    """The real look, which notes every stop in the middle of an operation."""
    real = timelimit.Limit._may_stop

    def looked(self, frame):
        may, at = real(self, frame), frame
        while may and at is not None and at is not self.block:
            if at.f_code.co_filename.startswith(timelimit.SIMULATOR):
                broken.append(at.f_code.co_name)
            at = at.f_back
        return may
    return looked


def test_the_simulated_device_is_whole_behind_a_stop(way):
    with simgpu.session(simgpu.RTX_5060_LAPTOP) as gpu:
        x = torch.eye(8, device="cuda")
        assert not judge("f", records if way == "thread" else launches, x).passed
        gpu_sum = float((x @ x).sum())
        torch.cuda.synchronize()
        assert gpu_sum == 8.0 and gpu.hazards == []


@posix
def test_handler_and_timer_are_as_before():
    def mine(*_):
        raise AssertionError
    old = signal.signal(signal.SIGALRM, mine)
    try:
        for answer in (endless, returns_in_time):
            judge("f", answer)
            assert signal.getsignal(signal.SIGALRM) is mine
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, old)


@posix
def test_an_alarm_of_somebody_else_is_left_alone():
    """Then there is no limit of ours."""
    rang = []
    old = signal.signal(signal.SIGALRM, lambda *_: rang.append(True))

    def longer_than_the_limit():
        end = time.monotonic() + 3 * timelimit.LIMIT_S
        while time.monotonic() < end:
            pass
        return 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 100.0, 50.0)
        assert judge("f", longer_than_the_limit).passed
        left, again = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left <= 100.0 and again == 50.0
        signal.setitimer(signal.ITIMER_REAL, 0.02)   # rings in the middle of the call
        assert judge("f", longer_than_the_limit).passed
        assert rang == [True]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@pytest.mark.parametrize("outer_ends", [True, False])
def test_a_check_in_a_check_ends_with_the_outer_one(way, outer_ends):
    def f():
        seen = judge("g", returns_in_time if outer_ends else endless)
        return seen.passed
    verdict = judge("f", f)
    assert verdict.passed == outer_ends
    assert outer_ends or ("f: not yet right" in repr(verdict) and "had not returned" in verdict.says)
    assert judge("f", returns_in_time).passed and not judge("f", endless).passed


@posix
def test_the_learners_own_interrupt_goes_through(way):
    def f():
        signal.raise_signal(signal.SIGINT)
        endless()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)     # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            judge("f", f)
    finally:
        signal.signal(signal.SIGINT, before)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert judge("f", returns_in_time).passed and not judge("f", endless).passed


def test_other_threads_have_no_limit_and_no_harm():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(judge("f", returns_in_time)))
    thread.start()
    thread.join()
    assert seen[0].passed


@posix
def test_a_wait_that_never_ends_is_stopped_as_well():
    assert "had not returned" in judge("f", functools.partial(call_wait, threading.Event())).says


def call_wait(event):
    event.wait()


def test_nothing_arrives_behind_a_function_that_returns_at_the_limit(way, monkeypatch):
    monkeypatch.setattr(timelimit, "AGAIN_S", 0.001)
    monkeypatch.setattr(timelimit, "LIMIT_S", 0.005)

    def f():
        end = time.monotonic() + 0.005
        while time.monotonic() < end:
            pass
        return 1
    for _ in range(40):
        judge("f", f)   # either way
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass
    assert judge("f", returns_in_time).passed


def test_what_never_leaves_an_operation_is_broken_off_at_last(way, monkeypatch):
    monkeypatch.setattr(timelimit, "SIMULATOR", __file__)
    monkeypatch.setattr(timelimit, "GRACE_S", 0.1)
    assert "had not returned" in judge("f", endless).says


def test_the_usual_limit_is_far_from_what_an_answer_takes(monkeypatch):
    monkeypatch.undo()
    assert timelimit.LIMIT_S >= 20 and timelimit.GROWTH_MIB >= 2048
