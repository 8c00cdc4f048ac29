"""How each kind of work looks: colour, hatching, character and word.

Colours are those of Okabe and Ito, https://jfly.uni-koeln.de/color/, which stay apart for colour-blind readers;
hatching tells kinds apart in print, characters tell them apart in text.
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """``key`` as in traces and graphs; ``word`` for legends; ``hatch`` in matplotlib's notation."""

    key: str
    word: str
    colour: str
    hatch: str
    char: str


KINDS = (
    Kind("kernel", "kernel", "#E69F00", "", "#"),
    Kind("h2d", "copy to device", "#56B4E9", "//", ">"),
    Kind("d2h", "copy to host", "#CC79A7", "\\\\", "<"),
    Kind("d2d", "copy on device", "#F0E442", "xx", "~"),
    Kind("memset", "memset", "#BBBBBB", "..", "o"),
    Kind("host", "host", "#8FCBB6", "", "-"),
    Kind("sync", "synchronise", "#FFFFFF", "||", "!"),
    Kind("task", "task", "#C9D8E6", "", "="),
    Kind("forward", "forward", "#F3C15C", "", "f"),
    Kind("backward", "backward", "#66C2A4", "/", "b"),
    Kind("gather", "all-gather", "#7FC4EC", "///", "g"),
    Kind("scatter", "reduce-scatter", "#DDA3C6", "\\\\\\", "r"),
    Kind("send", "send", "#F5EE8A", "...", "s"),
)
CODE = {kind.key: code for code, kind in enumerate(KINDS)}
TASK = CODE["task"]

ENGINES = ("host", "h2d", "compute", "d2h", "sync")         # lanes from top to bottom
ENGINE_NAMES = {"h2d": "H2D", "d2h": "D2H"}                  # others are shown as they are
SHOWN_ENGINES = ("host", "h2d", "compute", "d2h")            # of a trace, unless asked for more

# what a task does when only its resource is known
KIND_OF_RESOURCE = {
    "h2d": "h2d", "copy": "h2d", "copy in": "h2d", "onload": "h2d",
    "d2h": "d2h", "copy out": "d2h", "offload": "d2h",
    "compute": "kernel", "gpu": "kernel", "kernel": "kernel",
    "host": "host", "cpu": "host",
}

INK, GREY, GRID, PAPER = "#1A1A1A", "#555555", "#E4E4E4", "#FFFFFF"
EDGE = "#333333"
CRITICAL = "#B00020"      # dark enough to show as a heavy outline in grey print
GAP, GAP_INK = "#F7DDD0", "#7A2E00"
IDLE_CHAR, PART_CHAR, BEGIN_CHAR = ".", ":", "["


def code_of(kind: object, resource: object = None) -> int:
    """The code of a kind, or of what ``resource`` usually does, or of a plain task."""
    if kind in CODE:
        return CODE[str(kind)]
    return CODE[KIND_OF_RESOURCE.get(str(resource).lower(), "task")]
