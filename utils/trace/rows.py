"""One chunk of Kineto rows to columns: what each row is, on which stream, and its numbers.

Categories as torch.profiler's Kineto writes them (https://github.com/pytorch/kineto, libkineto/src).
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import compress
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .spans import KIND_CODES, LANE_BY_KIND, LANE_CODES

HOST, SYNC, KERNEL, MEMSET = (KIND_CODES[kind] for kind in ("host", "sync", "kernel", "memset"))
COPY, NOTE_HOST, NOTE_DEVICE, SKIP = 100, 101, 102, 103      # decided by name; annotations; not work
CATEGORIES = {
    "kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": MEMSET, "cuda_sync": SYNC,
    "cpu_op": HOST, "cuda_runtime": HOST, "cuda_driver": HOST,
    "user_annotation": NOTE_HOST, "gpu_user_annotation": NOTE_DEVICE,
}
SYNC_NAMES = frozenset(("Stream Sync", "Context Sync", "Device Sync", "Event Sync", "Stream Wait Event"))
COPY_KINDS = {"htod": "h2d", "htoa": "h2d", "dtoh": "d2h", "atoh": "d2h", "dtod": "d2d", "ptop": "d2d",
              "dtoa": "d2d", "atod": "d2d", "atoa": "d2d", "htoh": "host"}
COPY_WORD = re.compile(r"\b([HDAP]to[HDAP])\b", re.I)
COPY_ENDS = re.compile(r"\((\w+)\s*->\s*(\w+)\)")
DEVICE_MEMORY = frozenset(("device", "array"))
HOST_MEMORY = frozenset(("pinned", "pageable", "host"))
Row = dict[str, Any]
NO_ARGS: Row = {}
INT64 = 2**63


def column(rows: list[Row], key: str, default: Any = None) -> list[Any]:
    """One value per row, ``default`` where a row has none."""
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:
        return [row.get(key, default) for row in rows]


def category_code(category: Any) -> int:
    """What rows of a category are; of several, separated by commas, the first that is known."""
    if isinstance(category, str):
        for part in category.lower().split(","):
            if part.strip() in CATEGORIES:
                return CATEGORIES[part.strip()]
    return SKIP


def copy_kind(name: str) -> str | None:
    """Direction of a memory copy from its name; None when the name does not tell."""
    word = COPY_WORD.search(name)
    if word and word[1].lower() in COPY_KINDS:
        return COPY_KINDS[word[1].lower()]
    ends = COPY_ENDS.search(name.lower())
    if not ends:
        return None
    source, target = (end in DEVICE_MEMORY for end in ends.groups())
    known = all(end in DEVICE_MEMORY | HOST_MEMORY for end in ends.groups())
    directions = {(True, True): "d2d", (True, False): "d2h", (False, True): "h2d", (False, False): "host"}
    return directions[source, target] if known else None


class RowReader:
    """Classifies rows, remembers names, tracks and copies whose direction it could not tell."""

    def __init__(self) -> None:
        self.codes: dict[Any, int] = {}
        self.names: dict[str, str] = {}
        self.copies: dict[str, int] = {}
        self.tracks: dict[tuple[Any, Any], int] = {}
        self.unclear_copies: list[str] = []

    def choose(self, rows: list[Row]) -> tuple[list[Row], NDArray[np.int16], Counter[str]]:
        """The rows that become spans or annotations, what each is, and the categories of those left out."""
        skipped: Counter[str] = Counter()
        categories = column(rows, "cat")
        for category in set(categories) - self.codes.keys():
            self.codes[category] = category_code(category)
        codes = [self.codes[category] for category in categories]
        if SKIP in codes:
            skipped.update(str(cat) for cat, code in zip(categories, codes, strict=True) if code == SKIP)
            kept = [code != SKIP for code in codes]
            rows, codes = list(compress(rows, kept)), [code for code in codes if code != SKIP]
        return rows, np.array(codes, dtype=np.int16), skipped

    def columns(self, rows: list[Row], codes: NDArray[np.int16], *, own: bool) -> dict[str, NDArray[Any]]:
        """Everything but the times; in a file of the course's ``own`` making, kind and lane stand in the arguments."""
        known = self.names
        names = [known.setdefault(name, name) if type(name) is str else str(name)
                 for name in column(rows, "name")]
        args = [row.get("args") or NO_ARGS for row in rows]
        note = codes >= NOTE_HOST
        codes = _own_kinds(args) if own else self._by_name(names, codes)
        return {
            "name": np.array(names, dtype=object),
            "note": note,
            "kind": codes.astype(np.int8),
            "correlation": whole(column(args, "correlation", -1), -1),
            "track": self._track_codes(rows),
            **(_own_places(args) if own else _places(rows, args, codes)),
        }

    def _by_name(self, names: list[str], codes: NDArray[np.int16]) -> NDArray[np.int16]:
        """Settle copies by their direction, and waits that some versions file among the kernels."""
        codes = np.where(codes == NOTE_HOST, HOST, np.where(codes == NOTE_DEVICE, KERNEL, codes))
        for at in np.flatnonzero(codes == COPY).tolist():
            codes[at] = self._copy_code(names[at])
        if not SYNC_NAMES.isdisjoint(self.names):
            kernels = np.flatnonzero(codes == KERNEL).tolist()
            codes[[at for at in kernels if names[at] in SYNC_NAMES]] = SYNC
        return codes

    def _copy_code(self, name: str) -> int:
        code = self.copies.get(name)
        if code is None:
            kind = copy_kind(name)
            if kind is None:
                self.unclear_copies.append(name)
            code = self.copies[name] = KIND_CODES[kind or "d2d"]
        return code

    def _track_codes(self, rows: list[Row]) -> NDArray[np.int64]:
        known = self.tracks
        places = zip(column(rows, "pid"), column(rows, "tid"), strict=True)
        return np.array([known.setdefault(place, len(known)) for place in places], dtype=np.int64)


def _places(rows: list[Row], args: list[Row], kinds: NDArray[np.int16]) -> dict[str, NDArray[Any]]:
    """Lane, and what only device rows have. Stream and device fall back to tid and pid, the same in Kineto."""
    columns = {"stream": -1, "device": -1, "bytes": 0, "graph": 0}
    places = {name: np.full(len(rows), default, np.int64) for name, default in columns.items()}
    here = np.flatnonzero(kinds != HOST).tolist()
    rows, args = [rows[at] for at in here], [args[at] for at in here]
    places["stream"][here] = whole(_first(column(args, "stream"), column(rows, "tid")), -1)
    places["device"][here] = whole(_first(column(args, "device"), column(args, "inDevice"), column(rows, "pid")), 0)
    places["bytes"][here] = whole(column(args, "bytes", 0), 0)
    places["graph"][here] = whole(column(args, "graph id", 0), 0)
    return {**places, "lane": LANE_BY_KIND[kinds]}


def _first(*columns: list[Any]) -> list[Any]:
    """Row by row the first value that is there."""
    best, *rest = columns
    for other in rest:
        if None in best:
            best = [spare if value is None else value for value, spare in zip(best, other, strict=True)]
    return best


def _own_kinds(args: list[Row]) -> NDArray[np.int16]:
    return np.array([KIND_CODES[kind] for kind in column(args, "kind")], dtype=np.int16)


def _own_places(args: list[Row]) -> dict[str, NDArray[Any]]:
    return {
        "stream": whole(column(args, "stream", -1), -1),
        "device": whole(column(args, "device", -1), -1),
        "bytes": whole(column(args, "bytes", 0), 0),
        "graph": whole(column(args, "graph id", 0), 0),
        "lane": np.array([LANE_CODES[lane] for lane in column(args, "lane")], dtype=np.int8),
    }


def whole(values: list[Any], default: int) -> NDArray[np.int64]:
    """Whole numbers; digits in quotes count, anything else becomes ``default``."""
    try:
        array = np.array(values)
        if array.dtype == np.int64:
            return array
    except (ValueError, OverflowError):
        pass
    return np.array([_whole_one(value, default) for value in values], dtype=np.int64)


def _whole_one(value: Any, default: int) -> int:
    try:
        number = int(value) if isinstance(value, int | float | str) else default
    except (ValueError, OverflowError):
        return default
    return number if -INT64 <= number < INT64 else default
