"""How fast the simulated device is on this computer: operations per second, memory, import time, re-timing.

    python benchmarks/simgpu_speed.py            all figures, as a table
    python benchmarks/simgpu_speed.py --json     the same as JSON

Needs no GPU. Targets: 20,000 queued operations per second on a decoder block (numerics="shapes"), 1,000,000
operations with keep="none" in bounded memory, 50 ms of import beside torch, 20 ms to re-time a recorded 24-layer
double buffer.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from utils import simgpu  # noqa: E402

IMPORT = (
    "import sys, time; sys.path.insert(0, {root!r}); import torch; t = time.perf_counter(); {what}; "
    "print(time.perf_counter() - t)"
)


class DecoderBlock(nn.Module):
    """Llama 3 8B's shapes: width 4096, 32 heads, 8 KV heads, MLP 14336."""

    def __init__(self, width: int = 4096, heads: int = 32, kv_heads: int = 8, hidden: int = 14336):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, kv_heads * self.head, bias=False) for _ in range(2))
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, k_cache, v_cache, position, cos, sin):
        rows, steps, width = x.shape
        y = self.norm1(x)
        q = self.q(y).view(rows, steps, self.heads, self.head).transpose(1, 2)
        k, v = (f(y).view(rows, steps, self.kv_heads, self.head).transpose(1, 2) for f in (self.k, self.v))
        q, k = (rotate(t, cos, sin) for t in (q, k))
        k_cache[:, :, position : position + steps] = k
        v_cache[:, :, position : position + steps] = v
        end = position + steps
        y = F.scaled_dot_product_attention(q, k_cache[:, :, :end], v_cache[:, :, :end], enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(rows, steps, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotate(t, cos, sin):
    a, b = t.chunk(2, -1)
    return t * cos + torch.cat((-b, a), -1) * sin


def decode(count: int) -> tuple[float, int]:
    """(seconds, operations) of decoding steps until ``count`` operations are queued, synchronising every 16 steps."""
    with simgpu.session(simgpu.H200, numerics="shapes", keep="none") as gpu, torch.inference_mode():
        with torch.device("cuda"):
            block = DecoderBlock().to(torch.bfloat16)
            k_cache, v_cache = (torch.zeros(8, 8, 2048, 128, dtype=torch.bfloat16) for _ in range(2))
            cos, sin, x = (torch.zeros(*shape, dtype=torch.bfloat16) for shape in ((128,), (128,), (8, 1, 4096)))
        start, before, step = time.perf_counter(), gpu.machine.count, 0
        while gpu.machine.count - before < count:
            block(x, k_cache, v_cache, step % 2048, cos, sin)
            step += 1
            if step % 16 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        return time.perf_counter() - start, gpu.machine.count - before


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if platform.system() == "Linux" else 1 << 20)


def retime_ms(repeats: int = 20) -> float:
    """Median time to re-time a recorded 24-layer double buffer."""
    profile = simgpu.H200.scaled(1 / 64)
    with simgpu.session(profile, numerics="shapes") as gpu:
        double_buffer(24)
        graph = gpu.graph()
    times = []
    for repeat in range(repeats):
        start = time.perf_counter()
        simgpu.retime(graph, copy_scale=0.5 + repeat / 10)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def double_buffer(layers: int) -> None:
    weights = [torch.empty(128, 128, dtype=torch.bfloat16, pin_memory=True) for _ in range(layers)]
    slots = [torch.empty(128, 128, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
    loaded, free = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))
    x, onload = torch.zeros(128, 128, dtype=torch.bfloat16, device="cuda"), torch.cuda.Stream()
    for layer, weight in enumerate(weights):
        slot = layer % 2
        with torch.cuda.stream(onload):
            onload.wait_event(free[slot])
            slots[slot].copy_(weight, non_blocking=True)
            loaded[slot].record()
        torch.cuda.current_stream().wait_event(loaded[slot])
        x = torch.relu(x @ slots[slot])
        free[slot].record()
    torch.cuda.synchronize()


def import_ms(what: str, repeats: int = 5) -> float:
    """Median time of an import in a process that has imported torch."""
    code = IMPORT.format(root=str(ROOT), what=what)
    runs = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(repeats)
    ]
    return statistics.median(runs) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--operations", type=int, default=1_000_000, help="length of the long run (default 1,000,000)")
    options = parser.parse_args()
    decode(2_000)  # caches filled, as in any run but the first
    seconds, count = decode(20_000)
    after_short = peak_mib()
    long_seconds, long_count = decode(options.operations)
    figures = {
        "operations_per_s": round(count / seconds),
        "long_operations": long_count,
        "long_operations_per_s": round(long_count / long_seconds),
        "peak_mib_after_20000": round(after_short),
        "peak_mib_after_long": round(peak_mib()),
        "import_ms": round(import_ms("import utils.simgpu"), 1),
        "import_and_first_session_ms": round(import_ms("import utils.simgpu as s; s.install(); s.uninstall()"), 1),
        "retime_24_layers_ms": round(retime_ms(), 1),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(
        json.dumps(figures) if options.json else "\n".join(f"{name:30} {value:>14}" for name, value in figures.items())
    )


if __name__ == "__main__":
    main()
