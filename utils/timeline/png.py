"""PNG files from pixels: fast for redraws, small for saved notebooks, and without a date or a version inside."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

FAST, SMALL = 1, 9      # zlib levels
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encode(pixels: NDArray[np.uint8], level: int = SMALL) -> bytes:
    """A PNG file of ``pixels`` (height × width × 3, uint8)."""
    height, width, _ = pixels.shape
    lines = np.zeros((height, width * 3 + 1), dtype=np.uint8)     # every line opens with its filter, 0 = none
    lines[:, 1:] = pixels.reshape(height, width * 3)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(lines.tobytes(), level))
            + _chunk(b"IEND", b""))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
