"""Mend JSON text where only one reading is possible.

What profilers write that JSON does not allow, and what it can only have meant:

* control characters in a name: themselves
* a backslash that starts no escape (Windows paths and names): a backslash, and so are the others in that string
* a backslash before a quote that must be the closing one (``"C:\\dir\\", "pid": ...``): a backslash
* nan, inf, Infinity, -nan(ind) as numbers: no value
* a comma before a closing bracket: nothing;  bytes that are not UTF-8: a question mark each
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

# A quote that must close its string: behind it the next key or the end of the file follows. Were it escaped instead,
# the string would end at that key's opening quote and a bare word would follow, which is never valid.
CLOSING = rb'"(?=\s*(?:\Z|[,}\]][\s,\[\]{}]*(?:"[A-Za-z_]|\Z)))'
STRING = rb'"[^"\\]*(?:\\(?!' + CLOSING + rb')[\s\S][^"\\]*)*(?:\\(?=' + CLOSING + rb'))?"'

PIECE = re.compile(
    STRING + rb"|(?P<word>(?<![\w.+-])[+-]?(?:nan(?:\(\w+\))?|inf(?:inity)?)(?![\w.]))|(?P<comma>,(?=\s*[\]}]))", re.I)
NEEDS_CARE = re.compile(rb"[\x00-\x1f\\]")
BAD_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|(?P<bad>\\)')
LONE_SURROGATE = re.compile(
    rb"\\\\|(?P<pair>\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w)|(?P<lone>\\u[dD][89a-fA-F]\w\w)")
CONTROL = re.compile(rb"[\x00-\x1f]")
LITERAL = re.compile(rb'\\(["\\])|\\')


class Mended(NamedTuple):
    """Mended text, and the way back from a place in it to the place in the text as it was."""

    text: bytes
    places: list[int]            # ends of the mended pieces in ``text``
    growth: list[int]            # bytes added up to there

    def original(self, offset: int) -> int:
        """The offset in the text as it was."""
        at = bisect_right(self.places, offset)
        return offset - (self.growth[at - 1] if at else 0)


def mend(text: bytes) -> tuple[Mended, list[int]]:
    """Mend ``text``; also return the offsets of what was changed (none when nothing could be)."""
    text, edits = _utf8(text)
    parts, places, growth = [], [], []
    at = grown = 0
    for piece in PIECE.finditer(text):
        new = _mended_piece(piece)
        if new == piece.group():
            continue
        parts += (text[at:piece.start()], new)
        at, grown = piece.end(), grown + len(new) - len(piece.group())
        edits.append(piece.start())
        places.append(at + grown)
        growth.append(grown)
    return Mended(b"".join((*parts, text[at:])), places, growth), sorted(edits)


def _mended_piece(piece: re.Match[bytes]) -> bytes:
    if piece["word"]:
        return b"null"
    if piece["comma"]:
        return b""
    whole = piece.group()
    return b'"' + _string_body(whole[1:-1]) + b'"' if NEEDS_CARE.search(whole) else whole


def _string_body(body: bytes) -> bytes:
    """A string's inside, with every backslash and control character made valid."""
    if any(escape["bad"] for escape in BAD_ESCAPE.finditer(body)):
        # whoever wrote this string does not escape, so C:\temp in it is no tab either
        body = LITERAL.sub(lambda slash: slash.group() if slash[1] else rb"\\", body)
    body = LONE_SURROGATE.sub(lambda found: rb"\ufffd" if found["lone"] else found.group(), body)
    return CONTROL.sub(lambda sign: b"\\u%04x" % sign.group()[0], body)


def _utf8(text: bytes) -> tuple[bytes, list[int]]:
    """The same number of bytes, those that are not UTF-8 replaced; and their offsets."""
    bad: list[int] = []
    at = 0
    fixed = bytearray(text)
    while True:
        try:
            fixed[at:].decode()
            return bytes(fixed), bad
        except UnicodeDecodeError as error:
            start, end = at + error.start, at + error.end
            fixed[start:end] = b"?" * (end - start)
            bad.append(start)
            at = end
