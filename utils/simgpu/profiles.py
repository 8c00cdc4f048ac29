"""What a simulated device can do: rates, latencies and sizes, each with its source.

Sources: [5060] NVIDIA GeForce RTX 5060 Laptop page (384 GB/s, 3328 CUDA cores, 572 AI TOPS of sparse FP4, one
sixteenth of which is dense BF16 with FP32 accumulation). Its copy rate is not published; 19.7 GB/s is 128 MiB in
6.81 ms, the difference between the two times per call in WingEdge777's article on pipelining (1108.22 and 1101.41 ms),
read as one copy that nothing hides: an assumption. [T4] NVIDIA T4 datasheet. [Ada] NVIDIA Ada GPU
architecture whitepaper. [A100] NVIDIA A100 datasheet. [H200] NVIDIA H200 datasheet for peaks; copy rates, duplex
share, pageable rate and GEMM efficiency measured on one H200 with torch 2.11 (benchmarks/). Latencies and host
costs are round figures of the size that a CUDA profiler shows on current machines; PCIe rates without a measurement
are 80 % of the link's raw rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

GIB = 1 << 30
MIB = 1 << 20
NS = 1_000_000_000


@dataclass(frozen=True)
class Profile:
    """One device: rates in bytes/s and FLOP/s, times in ns, sizes in bytes.

    ``flops`` gives dense matrix peaks per dtype name ("default" for the rest), reached at ``gemm_efficiency``.
    ``scale`` is the factor f of ``scaled``: byte thresholds are compared with bytes / f².
    """

    name: str
    capability: tuple[int, int]
    sm_count: int
    memory_bytes: int
    memory_bytes_per_s: float
    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    flops: Mapping[str, float]
    workspace_bytes: int = 8 * MIB + 128 * 1024  # cuBLAS: 4096 KiB × 2 + 16 KiB × 8 (PyTorch's CUDABlas defaults)
    pageable_bytes_per_s: float = 6.1e9  # host staging buffer; between 6 and 9.4 GB/s seen beside an H200, by program
    host_bytes_per_s: float = 5e9  # one CPU thread converting or transposing before a copy
    copy_engines: int = 2
    duplex_share: float = 0.8  # each direction's share of its rate while both run
    gemm_efficiency: float = 0.7
    memory_efficiency: float = 0.85
    copy_latency_ns: int = 1_500
    kernel_latency_ns: int = 2_000
    launch_ns: int = 5_000  # host time of one PyTorch operation that launches a kernel
    event_ns: int = 1_000  # host time of event and stream calls that do not wait
    query_ns: int = 1_000  # host time of one query, so that polling ends
    sync_ns: int = 2_000  # host time of noticing that the device is done
    queue_depth: int = 1_024  # launches not yet finished per stream before the host blocks
    small_pageable_bytes: int = MIB  # pageable H2D up to here returns early (H200)
    converts_on_device: bool = True  # non_blocking copies change dtype and layout in a device kernel (H200, torch 2.11)
    small_kernels_overlap: bool = True
    scale: float = 1.0
    op_ns: Mapping[str, int] = field(default_factory=dict)  # device time by operator name, overrides the model

    def scaled(self, f: float) -> Profile:
        """The same device for a program all of whose dimensions, batch included, are ``f`` times as large.

        FLOP rates × f³; byte rates, capacity and workspace × f²; latencies unchanged.
        """
        if not f > 0:
            raise ValueError(f"scaled(f) needs a factor above 0, not {f!r}")
        two = f * f
        rates = ("memory_bytes_per_s", "h2d_bytes_per_s", "d2h_bytes_per_s", "pageable_bytes_per_s", "host_bytes_per_s")
        return replace(
            self,
            scale=self.scale * f,
            flops={name: rate * f**3 for name, rate in self.flops.items()},
            memory_bytes=int(self.memory_bytes * two),
            workspace_bytes=int(self.workspace_bytes * two),
            **{rate: getattr(self, rate) * two for rate in rates},
        )

    def with_ratio(self, copy_over_compute: float, weight_bytes: int, flops: float, dtype: str = "bfloat16") -> Profile:
        """The same device with a link on which copying ``weight_bytes`` takes ``copy_over_compute`` GEMMs of ``flops``.

        Both directions get that rate, every dtype multiplies at the rate of ``dtype``, and the pageable rate keeps
        its proportion.
        """
        if not (copy_over_compute > 0 and weight_bytes > 0 and flops > 0):
            raise ValueError(
                f"with_ratio needs positive numbers, not {copy_over_compute!r}, {weight_bytes!r}, {flops!r}"
            )
        peak = self.peak_flops(dtype)
        gemm_ns = self.kernel_latency_ns + flops / (peak * self.gemm_efficiency) * NS
        streaming_ns = copy_over_compute * gemm_ns - self.copy_latency_ns
        if streaming_ns <= 0:
            raise ValueError(
                f"a copy cannot take {copy_over_compute} × {gemm_ns:.0f} ns: its latency alone is "
                f"{self.copy_latency_ns} ns; use more flops per byte or a larger ratio"
            )
        rate = weight_bytes / streaming_ns * NS
        return replace(
            self,
            h2d_bytes_per_s=rate,
            d2h_bytes_per_s=rate,
            flops={"default": peak},
            pageable_bytes_per_s=self.pageable_bytes_per_s * rate / self.h2d_bytes_per_s,
        )

    def with_op_time(self, **op_ns: int) -> Profile:
        """The same device on which the named operators (as in traces, e.g. ``mm=5000``) take that many ns."""
        return replace(self, op_ns={**self.op_ns, **op_ns})

    def peak_flops(self, dtype: str) -> float:
        """Dense matrix peak of ``dtype`` in FLOP/s."""
        return self.flops.get(dtype, self.flops["default"])

    def is_small(self, nbytes: int) -> bool:
        """Whether a pageable host-to-device copy of this size returns before it is done."""
        return nbytes / (self.scale * self.scale) <= self.small_pageable_bytes

    def scaled_bytes(self, nbytes: int, least: int = 64) -> int:
        """A size of the full-scale allocator at this scale, a multiple of 64."""
        return max(least, int(nbytes * self.scale * self.scale) // 64 * 64)


RTX_5060_LAPTOP = Profile(  # [5060]
    "RTX 5060 Laptop",
    (12, 0),
    26,
    8 * GIB,
    384e9,
    19.7e9,
    19.7e9,
    {"float16": 35.75e12, "bfloat16": 35.75e12, "float32": 16.6e12, "float64": 0.26e12, "default": 16.6e12},
    copy_engines=1,
)
T4 = Profile(  # [T4]; no bf16 tensor cores
    "T4",
    (7, 5),
    40,
    16 * GIB,
    320e9,
    12.6e9,
    12.6e9,
    {"float16": 65e12, "float32": 8.1e12, "bfloat16": 8.1e12, "float64": 0.25e12, "default": 8.1e12},
)
RTX_4090 = Profile(  # [Ada]
    "RTX 4090",
    (8, 9),
    128,
    24 * GIB,
    1008e9,
    25.2e9,
    25.2e9,
    {"float16": 165.2e12, "bfloat16": 165.2e12, "float32": 82.6e12, "float64": 1.29e12, "default": 82.6e12},
)
A100 = Profile(  # [A100] 80 GB SXM
    "A100",
    (8, 0),
    108,
    80 * GIB,
    2039e9,
    25.2e9,
    25.2e9,
    {"float16": 312e12, "bfloat16": 312e12, "float32": 19.5e12, "float64": 19.5e12, "default": 19.5e12},
)
H200 = Profile(  # [H200]
    "H200",
    (9, 0),
    132,
    141 * 10**9,
    4.8e12,
    55.3e9,
    55.2e9,
    {"float16": 989e12, "bfloat16": 989e12, "float32": 67e12, "float64": 67e12, "default": 67e12},
    workspace_bytes=32 * MIB,
    duplex_share=0.908,  # 100.6 GB/s both ways at once, 55.5 + 55.3 alone: benchmarks/results/rates_h200.json
    gemm_efficiency=0.69,
)
