"""torch.cuda.CUDAGraph, graph and their pools, on the simulated device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from . import sessions, streams
from .capture import Capture, Node, replay
from .lock import locked
from .ops import Unsupported

_pools = count(1)


def graph_pool_handle() -> tuple[int, int]:
    """A token that lets several graphs share one private pool."""
    return (0, next(_pools))


def is_current_stream_capturing() -> bool:
    device = sessions.active()
    return device is not None and device.graphs is not None and device.graphs.has(device.queue)


class CUDAGraph:
    """Work captured once, replayed with one launch."""

    def __init__(self, keep_graph: bool = False):
        self._device = sessions.require("torch.cuda.CUDAGraph")
        self._nodes: list[Node] | None = None
        self._pool: Any = None
        self._capture: Capture | None = None
        self._replays = 0
        self._device.graph_count += 1
        self._number = self._device.graph_count - 1

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """From now on the current stream's work becomes nodes instead of running."""
        device = self._here("capture_begin")
        if device.queue is device.default:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. "
                "(However, after capture, it's ok to replay them on the default stream.)"
            )
        if device.graphs is not None:
            raise RuntimeError("CUDA error: a capture is in progress already; end it first")
        if self._nodes is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        pool = pool.pool() if isinstance(pool, CUDAGraph) else pool
        self._pool = pool or graph_pool_handle()
        users = device.machine.memory.pool_users
        users[self._pool] = users.get(self._pool, 0) + 1
        if not device.graph_seeds:  # where captured random kernels find seed and offset, as long as there are graphs
            device.graph_seeds = [device.allocate(8, device.queue) for _ in range(2)]
        self._capture = device.machine.capture = Capture(device.machine, device.queue, self._number, self._pool)

    def capture_end(self) -> None:
        device = self._here("capture_end")
        capture, self._capture = self._capture, None
        if capture is None:
            raise RuntimeError("CUDA error: capture_end without capture_begin")
        device.machine.capture = None
        if device.queue is not capture.origin:
            raise RuntimeError("Capture must end on the same stream it began on.")
        self._nodes = list(capture.finish())

    @locked
    def replay(self) -> None:
        """Queue the captured work on the current stream; inputs are read when it runs."""
        device = self._here("replay")
        if self._nodes is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        device.refuse_in_capture("CUDAGraph.replay()")
        replay(device.machine, device.queue, self._nodes, f"graph {self._number}, replay {self._replays}")
        self._replays += 1

    def reset(self) -> None:
        """Forget the captured work and leave the pool."""
        if self._nodes is not None or self._pool is not None:
            self._nodes = None
            if self._pool is not None:
                memory = self._device.machine.memory
                memory.pool_users[self._pool] -= 1
                self._pool = None
                if not memory.pools_in_use():
                    for block in self._device.graph_seeds:
                        memory.free(block)
                    self._device.graph_seeds = []

    def pool(self) -> Any:
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        if getattr(self, "_device", None) is not None and not at_exit():
            self.reset()

    def enable_debug_mode(self) -> None:
        raise Unsupported("CUDAGraph.enable_debug_mode is not modelled by the simulated device")

    def debug_dump(self, path: str) -> None:
        raise Unsupported("CUDAGraph.debug_dump is not modelled by the simulated device; look at gpu.graph() instead")

    def _here(self, what: str) -> Any:
        return streams._mine(self, f"CUDAGraph ({what})")


class graph:
    """``with torch.cuda.graph(g):`` captures the block into ``g``, on a side stream."""

    default_capture_stream: Any = None

    def __init__(self, cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"):
        device = sessions.require("torch.cuda.graph")
        self.graph, self.pool, self.mode = cuda_graph, pool, capture_error_mode
        if stream is None:
            device.capture_queue = device.capture_queue or device.pool_queue(0)
            stream = streams.Stream(_queue=device.capture_queue)
        self.context = streams.StreamContext(stream)

    def __enter__(self) -> None:
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.context.__enter__()
        try:
            self.graph.capture_begin(self.pool, self.mode)
        except BaseException:
            self.context.__exit__()
            raise

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is not None:
                sessions.require("torch.cuda.graph").machine.capture = None
                self.graph._capture = None
            else:
                self.graph.capture_end()
        finally:
            self.context.__exit__()
