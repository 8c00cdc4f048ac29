"""Trace files as JSON text: the metadata around ``traceEvents``, the events in chunks, and mending of bad text.

A chunk is cut at a likely boundary ``}, {"ph"`` and parsed as a list. JSON is read from left to right, so when events
1..k parse as a list, the cut was a real boundary: no second pass over the text is needed to find the events.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import orjson

from .errors import TraceWarning
from .mending import STRING, mend
from .source import Source

CHUNK_BYTES = 512 << 10          # parsed events of one chunk stay in the processor's caches: 8 MiB took twice as long
SCAN_BYTES = 32 << 10             # less than this is scanned rather than guessed at
FIRST_KEY = re.compile(rb'\s*\{(\s*"\w*")?')
TRIES = 3                        # likely boundaries tried before the text is scanned for a certain one
TOKEN = re.compile(STRING + rb"|[\[\]{}]", re.DOTALL)
BLANK = re.compile(rb"\s*")
SCALAR = re.compile(rb'[^\s,:\]}"\[{]+')
DAMAGE = re.compile(r"[\x00-\x1f\\?\ufffd]")       # what mending leaves where the text was damaged
MORE, END, CUT = "more", "end", "cut"
STAMP = re.compile(rb'"ts"\s*:\s*(-?[0-9][0-9.eE+-]*)')


class EventText:
    """Walks one trace file; ``chunks`` yields its events, ``meta`` holds the other keys once they were passed."""

    def __init__(self, source: Source) -> None:
        self.source, self.text = source, source.text
        self.meta: dict[str, Any] = {}
        self.quote_stamps = False        # numbers of ts stay text, digit for digit
        self.mended: list[int] = []      # offsets of what was mended
        self.boundary = FIRST_KEY        # set to what the border between two events looks like in this file

    def chunks(self) -> Iterator[tuple[list[Any], int, int]]:
        """Yield (events, start, end): lists of parsed events with their place in the text.

        Raises TraceError when anything in the file, before, between or after the events, is not sound.
        """
        at = self._skip(0)
        if self.text[at:at + 1] == b"[":
            at = yield from self._events(at + 1)
        elif self.text[at:at + 1] == b"{":
            at = yield from self._object(at + 1)
        else:
            raise self.source.fail(at, f"this is not a trace: it starts with {self._peek(at)} instead of {{ or [")
        at = self._skip(at)
        if at < len(self.text):
            raise self.source.fail(at, f"the trace ends here, but {self._peek(at)} follows")
        self._tell_mended()

    def parse(self, start: int, end: int) -> list[Any]:
        """The events between two offsets, numbers of ts as text when ``quote_stamps`` is set."""
        body = b"[" + self.text[start:end] + b"]"
        try:
            return orjson.loads(self._quoted(body))
        except orjson.JSONDecodeError:
            events = self._mended(body, start - 1)
            self._refuse_damaged(events, start)
            return events

    def element_offset(self, start: int, index: int) -> int:
        """Where event number ``index`` of the chunk at ``start`` begins."""
        at = self._skip(start)
        for _ in range(index):
            state, end = self._scan(at, at + 1)
            at = self._after_comma(end) if state == MORE else end
        return at

    # --- the object around the events -------------------------------------------------------------------------------

    def _object(self, at: int) -> Iterator[tuple[list[Any], int, int]]:
        found, at = False, self._skip(at)
        while self.text[at:at + 1] != b"}":
            start = at
            key, at = self._value(at)
            if not isinstance(key, str):
                raise self._broken(start, "a key in quotes was expected")
            at = self._expect(at, b":", f"after the key {key!r}")
            if key == "traceEvents" and self.text[at:at + 1] == b"[":
                if found:
                    raise self.source.fail(at, "a second list of traceEvents; split the file into one trace each")
                found, at = True, (yield from self._events(at + 1))
            else:
                self.meta[key], at = self._value(at)
            at = self._next_key(at)
        if not found:
            keys = ", ".join(map(str, list(self.meta)[:5])) or "nothing"
            raise self.source.fail(0, f"this is not a trace: no list of traceEvents, only {keys}")
        return at + 1

    def _next_key(self, at: int) -> int:
        at = self._skip(at)
        return at if self.text[at:at + 1] == b"}" else self._expect(at, b",", "between two keys")

    def _value(self, at: int) -> tuple[Any, int]:
        """One JSON value outside the events, parsed, and where it ends."""
        token = TOKEN.match(self.text, at)
        if token is None:
            scalar = SCALAR.match(self.text, at)
            end = scalar.end() if scalar else at
        elif token.group()[:1] == b'"':
            end = token.end()
        else:
            end = self._scan(at, at + 1)[1]
        if end == at:
            cut = self.text[at:at + 1] == b'"'       # a string without an end
            raise self._broken(len(self.text) if cut else at, "a value was expected")
        body = self.text[at:end]
        try:
            return orjson.loads(body), end
        except orjson.JSONDecodeError:
            return self._mended(body, at), end

    def _expect(self, at: int, sign: bytes, where: str) -> int:
        at = self._skip(at)
        if self.text[at:at + 1] != sign:
            raise self._broken(at, f"{sign.decode()} was expected {where}")
        return self._skip(at + 1)

    # --- the list of events -----------------------------------------------------------------------------------------

    def _events(self, at: int) -> Iterator[tuple[list[Any], int, int]]:
        """Yield chunks of the list that starts at ``at``; return where the list ends."""
        first = FIRST_KEY.match(self.text, at)
        key = (first[1] or b"").strip() if first else b""
        self.boundary = re.compile(rb"\}\s*,\s*\{\s*" + key)     # lists within an event rarely begin with that key
        while True:
            chunk = self._likely_chunk(at)
            state = MORE
            if chunk is None:
                state, end = self._scan(at, at + CHUNK_BYTES)
                if state == CUT:
                    raise self._cut(at)
                if state == END and self.text[end:end + 1] != b"]":
                    raise self._broken(end, "the list of events must end with ]")
                chunk = self.parse(at, end), at, end
            yield chunk
            if state == END:
                return chunk[2] + 1
            at = self._after_comma(chunk[2])

    def _likely_chunk(self, at: int) -> tuple[list[Any], int, int] | None:
        """A chunk that ends at a likely boundary, or None when none of the first few is one."""
        size = min(CHUNK_BYTES, (len(self.text) - at) // 2)      # ever smaller towards the end of the file
        if size < SCAN_BYTES:
            return None
        aim = at + size
        for _ in range(TRIES):
            cut = self.boundary.search(self.text, aim)
            if cut is None:
                return None
            end = cut.start() + 1
            try:
                return orjson.loads(self._quoted(b"[" + self.text[at:end] + b"]")), at, end
            except orjson.JSONDecodeError:
                aim = cut.end()
        return None

    def _scan(self, at: int, aim: int) -> tuple[str, int]:
        """Walk over whole values until one ends at or past ``aim`` (MORE), or the list around them ends (END)."""
        depth = 0
        for token in TOKEN.finditer(self.text, at):
            sign = token.group()[:1]
            if sign in b"[{":
                depth += 1
            elif sign in b"]}":
                depth -= 1
                if depth < 0:
                    return END, token.start()
                if depth == 0 and token.end() >= aim:
                    follows = self._skip(token.end())
                    return (END, follows) if self.text[follows:follows + 1] == b"]" else (MORE, token.end())
        return CUT, len(self.text)

    def _after_comma(self, at: int) -> int:
        return self._expect(at, b",", "between two events")

    # --- what is wrong, and where -----------------------------------------------------------------------------------

    def _mended(self, body: bytes, origin: int) -> Any:
        """Parse text that is not valid JSON after mending it, or say where it stays broken."""
        fixed, edits = mend(body)
        try:
            parsed = orjson.loads(self._quoted(fixed.text))
        except orjson.JSONDecodeError as error:
            parse_error = _plain_error(fixed.text) or error
            offset = max(origin + fixed.original(_byte_position(parse_error)), 0)
            raise self._broken(offset, f"not valid JSON: {parse_error.msg}") from None
        self.mended += [origin + edit for edit in edits]
        return parsed

    def _refuse_damaged(self, events: list[Any], start: int) -> None:
        """Of what was mended: a damaged key, ``ph`` or ``cat`` hides what the row is, and has no sure repair."""
        for index, event in enumerate(events):
            words = (*event, event.get("ph"), event.get("cat")) if isinstance(event, dict) else ()
            odd = next((word for word in words if isinstance(word, str) and DAMAGE.search(word)), None)
            if odd is not None:
                problem = f"the text {odd!r} of this event is damaged, so nobody knows what it is; copy the file again"
                raise self.source.fail(self.element_offset(start, index), problem)

    def _cut(self, at: int) -> Exception:
        """The error for a list of events that never ends."""
        error = _plain_error(b"[" + self.text[at:])
        offset = len(self.text) if error is None else at - 1 + _byte_position(error)
        return self._broken(offset, "not valid JSON" if error is None else f"not valid JSON: {error.msg}")

    def _broken(self, offset: int, problem: str) -> Exception:
        if offset >= len(self.text):
            return self.source.fail(len(self.text), "the file breaks off here, before the trace ends; copy it again")
        return self.source.fail(offset, f"{problem}, found {self._peek(offset)}")

    def _tell_mended(self) -> None:
        if self.mended:
            first = self.mended[0] + self.source.shift
            what = f"mended {len(self.mended)} pieces of text that are not valid JSON"
            where = f"the first at byte {first:,}{self.source.form}"
            warnings.warn(f"{self.source.label}: {what}, {where}", TraceWarning, stacklevel=2)

    def _quoted(self, body: bytes) -> bytes:
        """The text with every ts in quotes when its digits are needed: ``"ts"`` cannot occur within a valid string."""
        if not self.quote_stamps:
            return body
        parts = STAMP.split(body)            # text, digits, text, digits, ...: far faster than a substitution
        parts[1::2] = [b'"ts":"%b"' % digits for digits in parts[1::2]]
        return b"".join(parts)

    def _skip(self, at: int) -> int:
        return BLANK.match(self.text, at).end()

    def _peek(self, at: int) -> str:
        return repr(self.text[at:at + 20].decode("utf-8", "replace"))


def _plain_error(body: bytes) -> orjson.JSONDecodeError | None:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return error
    return None


def _byte_position(error: orjson.JSONDecodeError) -> int:
    """orjson counts characters: the same place in bytes."""
    return len(error.doc[:error.pos].encode("utf-8", "replace"))
