"""The text of a trace file as UTF-8 bytes: whole, or an error that names the file."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import NamedTuple

from .errors import TraceError

GZIP_MAGIC = b"\x1f\x8b"
BLOCK_BYTES = 1 << 20            # compressed bytes handed to zlib at a time
GZIP_WINDOW = 16 + zlib.MAX_WBITS
UTF16_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


class Source(NamedTuple):
    """A file's text and how to speak of a position in it."""

    label: str                   # the path as it was given
    text: bytes                  # UTF-8, without a byte order mark
    shift: int = 0               # bytes of the file before ``text``
    form: str = ""               # what the offset counts in, when not in the file itself

    def fail(self, offset: int, problem: str) -> TraceError:
        """An error about the byte at ``offset`` of the text."""
        return TraceError(f"{self.label}: byte {offset + self.shift:,}{self.form}: {problem}")


def read_source(path: str | os.PathLike[str]) -> Source:
    """Read a file, unpack it when it is gzip (whatever its name says), and decode it to UTF-8 bytes.

    Raises FileNotFoundError for a missing file, TraceError for a directory, an empty file or a broken archive.
    """
    label = os.fspath(path)
    if Path(path).is_dir():
        raise TraceError(f"{label}: this is a directory; give one trace file in it (.json or .json.gz)")
    raw = Path(path).read_bytes()
    if not raw:
        raise TraceError(f"{label}: byte 0: the file is empty; record or copy the trace again")
    if raw.startswith(GZIP_MAGIC):
        return _decoded(label, _unpack(label, raw), " of the unpacked text")
    return _decoded(label, raw, "")


def _decoded(label: str, text: bytes, form: str) -> Source:
    if not text[:BLOCK_BYTES].strip() and not text.strip():
        raise TraceError(f"{label}: byte 0{form}: there is no text in it; record or copy the trace again")
    if text.startswith(b"\xef\xbb\xbf"):
        return Source(label, text[3:], 3, form)
    encoding = UTF16_MARKS.get(text[:2])
    if encoding is None:
        return Source(label, text, 0, form)
    try:
        return Source(label, text[2:].decode(encoding).encode(), 0, " of the text as UTF-8")
    except UnicodeError as error:
        problem = f"UTF-16 text that breaks off or is damaged ({error}); save it again as UTF-8"
        raise TraceError(f"{label}: byte {getattr(error, 'start', 0) + 2:,}{form}: {problem}") from None


def _unpack(label: str, raw: bytes) -> bytes:
    """All members of a gzip file, one after another."""
    parts, at = [], 0
    while at < len(raw):
        if at and not raw[at:].strip(b"\0"):     # padding after the last member is allowed
            break
        part, at = _unpack_member(label, raw, at)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unpack_member(label: str, raw: bytes, start: int) -> tuple[bytes, int]:
    """One gzip member and where the next one starts; its length and checksum are verified by zlib."""
    member, parts, at = zlib.decompressobj(GZIP_WINDOW), [], start
    while not member.eof:
        if at >= len(raw):
            raise TraceError(f"{label}: byte {len(raw):,}: the gzip data breaks off here; copy the file again")
        block = raw[at:at + BLOCK_BYTES]
        try:
            parts.append(member.decompress(block))
        except zlib.error as error:
            problem = f"the gzip data is damaged ({error}); copy the file again"
            raise TraceError(f"{label}: near byte {at:,}: {problem}") from None
        at += len(block) - len(member.unused_data)
    return b"".join(parts), at
