"""What a check says about an answer: ticks, the reason, a picture, and what it was tried on."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any, Protocol

WIDTH = 80
MARKS = {True: "[x]", False: "[ ]", None: " - "}   # None: not judged, because an earlier tick is missing


class Picture(Protocol):
    """A figure with a text equivalent, as ``utils.timeline`` makes them."""

    text: str

    def _repr_mimebundle_(self, **kwargs: Any) -> Any: ...


@dataclass(frozen=True)
class Tick:
    """One thing that is judged: its name, whether it holds (None: not judged), and why in one line."""

    name: str
    holds: bool | None
    why: str = ""


@dataclass
class Verdict:
    """The outcome for one answer. It shows as text everywhere and as text with a picture in a notebook.

    ``ticks``: what was judged. ``says``: what is wrong, in words, with its witness; empty when nothing is.
    ``advice``: what could be better and costs nothing. ``tried``: every configuration that was judged.
    """

    puzzle: str
    ticks: list[Tick] = field(default_factory=list)
    says: str = ""
    advice: list[str] = field(default_factory=list)
    tried: str = ""
    picture: Picture | None = None
    pending: bool = False

    @property
    def passed(self) -> bool:
        """Whether every tick holds."""
        return bool(self.ticks) and all(tick.holds for tick in self.ticks)

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        outcome = "not done yet" if self.pending else "passed" if self.passed else "not yet right"
        lines = [f"{self.puzzle}: {outcome}"]
        for tick in self.ticks:
            lines += _wrap(f"  {MARKS[tick.holds]} {tick.name:<10} {tick.why}", hang=17)
        for text in [self.says, *(f"Advice: {line}" for line in self.advice)]:
            lines += [row for paragraph in text.split("\n") if text for row in _wrap(f"  {paragraph}", hang=2)]
        if self.tried:
            lines += _wrap(f"  Tried on: {self.tried}", hang=2)
        if self.picture is not None:
            lines += ["", self.picture.text]
        return lines

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle: dict[str, Any] = {"text/plain": repr(self)}
        if self.picture is None:
            return bundle, {}
        shown = self.picture._repr_mimebundle_()
        drawn, metadata = shown if isinstance(shown, tuple) else (shown, {})
        if "image/png" in drawn:
            bundle["image/png"] = drawn["image/png"]
        return bundle, {kind: value for kind, value in metadata.items() if kind == "image/png"}


def _wrap(text: str, hang: int) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * hang, break_on_hyphens=False) or [""]
