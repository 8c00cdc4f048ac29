"""Run a program for the first puzzle and show what it does: its timeline, its results, and what races."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from ...timeline import Picture, timeline
from ..check import Answer, Refused, Unsolved
from ..device import Run, run_once
from ..verdict import WIDTH
from .store import Case, StoreEach

if TYPE_CHECKING:
    from ...simgpu import Hazard

SHOWN = Case(5)
RATIO = 1.0


class Shown:
    """A program's timeline, its results and its hazards, one of a kind; text, with a picture in a notebook."""

    def __init__(self, name: str, run: Run) -> None:
        self.name, self.run = name, run
        self.picture: Picture = timeline({name: run.trace}, title=f"{SHOWN}, a store as long as a product")

    def __repr__(self) -> str:
        found = _one_of_a_kind(self.run.hazards + self.run.later)
        count = len(self.run.hazards) + len(self.run.later)
        head = [f"{self.name}: {SHOWN}, copy/compute {RATIO:g}", f"Results: {self.run.value!r}"]
        tail = [f"Hazards: {count}" + (", of which the first of each kind:" if count else ""), *map(str, found)]
        return "\n".join([*head, "", self.picture.text, "", *(row for text in tail for row in _wrapped(text))])

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        shown = self.picture._repr_mimebundle_()
        drawn, metadata = shown if isinstance(shown, tuple) else (shown, {})
        bundle = {kind: value for kind, value in drawn.items() if kind == "image/png"}
        return bundle | {"text/plain": repr(self)}, {kind: metadata[kind] for kind in bundle if kind in metadata}


def _wrapped(text: str) -> list[str]:
    return [row for line in text.split("\n") for row in textwrap.wrap(line, WIDTH, subsequent_indent="    ")]


def _one_of_a_kind(hazards: list[Hazard]) -> list[Hazard]:
    first: dict[str, Hazard] = {}
    for hazard in hazards:
        first.setdefault(hazard.kind, hazard)
    return list(first.values())


def show(program: Answer) -> Shown:
    """Run a function like ``store_each``, whatever its name, on five layers, and show what happens.

    Raises RuntimeError with the learner's own error where the program fails, and for a stub.
    """
    try:
        return Shown(getattr(program, "__name__", "program"), run_once(StoreEach().setting(SHOWN), program, RATIO))
    except Refused as refused:
        raise RuntimeError(str(refused)) from refused.__cause__
    except Unsolved:
        raise RuntimeError("nothing to show: this function is not written yet") from None
