"""torch.cuda.Stream, Event and the functions around the current stream, on the simulated device."""

from __future__ import annotations

from typing import Any

from . import sessions
from .device import SimDevice
from .lock import lock_methods, locked
from .ops import DONE, Op, Queue, Unsupported
from .tensor import CUDA

PRIORITIES = (0, -1)  # least and greatest; CUDA clamps what lies outside
_handles: dict[int, int] = {}


def _mine(thing: Any, what: str) -> SimDevice:
    """The active device, which must be the one that ``thing`` belongs to."""
    device = sessions.require(what)
    if thing._device is not device:
        own = thing._device.profile.name
        raise RuntimeError(
            f"a {what} of the simulated {own} was used on the simulated {device.profile.name} that is active now"
        )
    return device


class Stream:
    """A queue of work on the device."""

    device_type = 1
    device_index = 0

    def __init__(self, device: Any = None, priority: int = 0, *, _queue: Queue | None = None, **kwargs: Any):
        if kwargs:
            raise Unsupported(f"torch.cuda.Stream with {', '.join(kwargs)} is not modelled by the simulated device")
        self._device = sessions.require("torch.cuda.Stream")
        sessions.check_index(device)
        self.queue = _queue or self._device.pool_queue(max(PRIORITIES[1], min(PRIORITIES[0], priority)))

    @classmethod
    def priority_range(cls) -> tuple[int, int]:
        return PRIORITIES

    @property
    def device(self) -> Any:
        return CUDA

    @property
    def priority(self) -> int:
        return self.queue.priority

    @property
    def stream_id(self) -> int:
        return self.queue.actor

    @property
    def cuda_stream(self) -> int:
        return self.queue.actor

    def wait_event(self, event: Event) -> None:
        """Later work here waits for the event's most recent record."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Later work here waits for everything queued on ``stream`` so far."""
        self.wait_event(stream.record_event(_hidden=True))

    def record_event(self, event: Event | None = None, *, _hidden: bool = False) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        device = _mine(self, "stream")
        device.refuse_in_capture("Stream.query()")
        return device.machine.query(device.machine.record(self.queue, cost=False, name="stream query"))

    def synchronize(self) -> None:
        """The host waits until this stream is empty."""
        device = _mine(self, "stream")
        device.refuse_in_capture("Stream.synchronize()")
        device.machine.synchronize(
            device.machine.record(self.queue, cost=False, name="stream synchronize"), "stream synchronize"
        )

    def __enter__(self) -> Stream:
        self._entered = [*getattr(self, "_entered", ()), current_stream()]
        set_stream(self)
        return self

    def __exit__(self, *error: Any) -> None:
        set_stream(self._entered.pop())

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Stream) and other.queue is self.queue

    def __hash__(self) -> int:
        return hash(self.queue)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream {self.queue.name} (simulated)>"


class Event:
    """A point in a stream: recorded, waited for, timed."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ):
        if interprocess or external:
            raise Unsupported(
                "torch.cuda.Event(interprocess=…) and (external=…) are not modelled by the simulated device"
            )
        self._device = sessions.require("torch.cuda.Event")
        self.enable_timing, self.blocking = enable_timing, blocking
        self.marker: Op | Any = None

    device = CUDA

    def record(self, stream: Stream | None = None) -> None:
        device = _mine(self, "event")
        queue = (_checked(stream) if stream is not None else current_stream()).queue
        device.machine.spend(device.profile.event_ns, "event record", "event")
        if device.graphs is not None and device.graphs.has(queue):
            self.marker = device.graphs.record(queue)
        else:
            self.marker = device.machine.record(queue, cost=False)

    def wait(self, stream: Stream | None = None) -> None:
        device = _mine(self, "event")
        queue = (_checked(stream) if stream is not None else current_stream()).queue
        device.machine.spend(device.profile.event_ns, "event wait", "event")
        if device.graphs is not None and device.graphs.wait(queue, self.marker):
            return
        if self.marker is None:
            note = device.machine.note(
                "wait on an event never recorded",
                f"{queue.name} waited on an event before its first record: that wait did nothing",
            )
            queue.void_waits.append((self, note))
        elif not isinstance(self.marker, Op):
            raise RuntimeError(
                "CUDA error: an event recorded during graph capture can only be waited for in the same capture"
            )
        else:
            device.machine.wait(queue, self.marker)

    def query(self) -> bool:
        device = _mine(self, "event")
        device.refuse_in_capture("Event.query()")
        return True if self.marker is None else device.machine.query(self._outside())

    def synchronize(self) -> None:
        """The host waits for the most recent record."""
        device = _mine(self, "event")
        device.refuse_in_capture("Event.synchronize()")
        if self.marker is not None:
            device.machine.synchronize(self._outside(), "event synchronize")

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of device time from this event to ``end``."""
        if not self.enable_timing or not end.enable_timing:
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.marker is None or end.marker is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        machine = _mine(self, "event").machine
        machine.advance(machine.host_ns)
        if self._outside().state != DONE or end._outside().state != DONE:
            raise RuntimeError(
                "CUDA error: device not ready; synchronise with both events before reading the time between them"
            )
        return (end.marker.end - self.marker.end) / 1e6

    def _outside(self) -> Op:
        if not isinstance(self.marker, Op):
            raise RuntimeError("CUDA error: this event was recorded during graph capture; the host cannot wait for it")
        return self.marker

    @property
    def cuda_event(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {'recorded' if self.marker is not None else 'not recorded'} (simulated)>"


lock_methods(Stream, "query", "synchronize")
lock_methods(Event, "record", "wait", "query", "synchronize", "elapsed_time")


class ExternalStream:
    def __init__(self, *args: Any, **kwargs: Any):
        raise Unsupported("torch.cuda.ExternalStream is not modelled by the simulated device")


class StreamContext:
    """``with torch.cuda.stream(s):`` makes ``s`` current; None changes nothing."""

    def __init__(self, stream: Stream | None):
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.before = current_stream()
            set_stream(self.stream)

    def __exit__(self, *error: Any) -> None:
        if self.stream is not None:
            set_stream(self.before)


def stream(stream: Stream | None) -> StreamContext:
    return StreamContext(stream)


def current_stream(device: Any = None) -> Stream:
    sessions.check_index(device)
    return Stream(_queue=sessions.require("torch.cuda.current_stream").queue)


def default_stream(device: Any = None) -> Stream:
    sessions.check_index(device)
    return Stream(_queue=sessions.require("torch.cuda.default_stream").default)


def set_stream(stream: Stream) -> None:
    if stream is not None:
        device = sessions.require("torch.cuda.set_stream")
        device.current.queue = _checked(stream).queue


@locked
def synchronize(device: Any = None) -> None:
    """The host waits for the whole device."""
    sessions.check_index(device)
    here = sessions.require("torch.cuda.synchronize")
    here.refuse_in_capture("torch.cuda.synchronize()")
    here.machine.synchronize_all()


def _checked(stream: Stream) -> Stream:
    if not isinstance(stream, Stream):
        raise TypeError(f"expected a torch.cuda.Stream of the simulated device, not {type(stream).__name__}")
    _mine(stream, "stream")
    return stream
