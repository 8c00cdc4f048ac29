"""Labels: cleaned, shortened, and measured in columns of text and in pixels of a picture."""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache

from matplotlib import font_manager
from matplotlib.ft2font import FT2Font

FAMILY = "DejaVu Sans"      # comes with matplotlib, so pictures are alike everywhere
FALLBACKS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Microsoft YaHei", "PingFang SC", "Hiragino Sans GB",
             "WenQuanYi Micro Hei", "SimHei")
MISSING = "□"
LEAST_CUT = 7               # a cut label keeps at least this many characters, the ellipsis included
MIB = 2**20


def clean(text: object, limit: int = 200) -> str:
    """``text`` on one line, without control characters."""
    line = "".join(" " if unicodedata.category(char) in ("Cc", "Zl", "Zp") else char for char in str(text)[:limit])
    return " ".join(line.split())


@lru_cache(maxsize=4096)
def short_name(name: str) -> str:
    """What a kernel is called without types, template arguments and parameters."""
    bare = re.sub(r"^(void|static|auto)\s+", "", clean(name))
    bare = re.sub(r"\(anonymous namespace\)::|<.*|\(.*", "", bare).strip()
    bare = bare.rsplit("::", 1)[-1]
    return bare or clean(name)


def size_name(count: float) -> str:
    """Bytes in readable units: ``"128 MiB"``."""
    for size, unit in ((2**30, "GiB"), (MIB, "MiB"), (2**10, "KiB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


# columns of a fixed-width font
def columns(text: str) -> int:
    """Columns that ``text`` takes in a terminal: wide characters two, combining ones none."""
    return sum(_columns_of(char) for char in text)


def _columns_of(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fit(text: str, width: int) -> str:
    """``text`` cut to ``width`` columns (with an ellipsis) and filled up with spaces."""
    if columns(text) > width:
        kept = ""
        for char in text:
            if columns(kept + char) > width - 1:
                break
            kept += char
        text = kept + "…"
    return text + " " * (width - columns(text))


def label_columns(label: str, width: int, cut: bool) -> str:
    """``label`` if it fits ``width`` columns, a cut one if allowed and enough of it stays, else nothing."""
    if columns(label) <= width:
        return label
    return fit(label, width).rstrip() if cut and width >= LEAST_CUT else ""


# pixels of a proportional font
@cache
def families() -> tuple[str, ...]:
    """The course's font, then installed fonts that know Chinese, Japanese and Korean."""
    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return (FAMILY, *[name for name in FALLBACKS if name in installed])


@cache
def _fonts() -> tuple[FT2Font, ...]:
    return tuple(FT2Font(font_manager.findfont(name)) for name in families())


@cache
def _advance(char: str) -> float | None:
    """Width of a character in em, None when no font has it."""
    for font in _fonts():
        if font.get_char_index(ord(char)):
            font.set_size(100, 72)
            return font.load_char(ord(char)).linearHoriAdvance / 65536 / 100
    return None


def drawable(text: str) -> str:
    """``text`` with a box in place of every character that no installed font can draw."""
    if text.isascii():
        return text
    return "".join(char if _advance(char) is not None else MISSING for char in text)


@lru_cache(maxsize=65536)
def inches(text: str, points: float, bold: bool = False) -> float:
    """Width of drawable ``text`` at a font size; bold is about an eighth wider."""
    ems = sum(_advance(char) or _advance(MISSING) or 1.0 for char in text)
    return ems * points / 72 * (1.13 if bold else 1.0)


def label_inches(label: str, width: float, points: float, cut: bool) -> str:
    """The same for ``width`` inches of a picture; the result is drawable."""
    label = drawable(label)
    if inches(label, points) <= width:
        return label
    if not cut:
        return ""
    length = next((size for size in range(min(len(label), 60), LEAST_CUT - 2, -1)
                   if inches(label[:size] + "…", points) <= width), 0)
    return label[:length] + "…" if length else ""
