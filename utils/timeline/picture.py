"""The object that a notebook shows: a picture where there are pictures, text everywhere else."""

from __future__ import annotations

import base64
from functools import cached_property
from typing import Any

from matplotlib.figure import Figure

from .graph_picture import graph_text
from .png import encode
from .scene import Scene, Stage
from .text import summary, timeline_text


class Picture:
    """A timeline or a task graph.

    ``text``: at most 80 columns, complete without the picture. ``figure``: a matplotlib Figure of its own, unknown to
    pyplot. ``png``: the rendered file. ``alt``: one sentence for screen readers. All are made when first asked for.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    @cached_property
    def text(self) -> str:
        scene = self.scene
        parts = [graph_text(scene.graph)] if scene.graph else []
        if scene.panels:
            parts.append(timeline_text(list(scene.panels), scene.window, "" if scene.graph else scene.title))
        if scene.graph and scene.title:
            parts.insert(0, scene.title)
        return "\n\n".join(parts)

    @cached_property
    def alt(self) -> str:
        scene = self.scene
        parts = [graph_text(scene.graph).splitlines()[0]] if scene.graph else []
        parts += [summary(list(scene.panels), scene.window, scene.title)] if scene.panels else []
        return " ".join(parts)

    @cached_property
    def figure(self) -> Figure:
        return Stage().show(self.scene)

    @cached_property
    def png(self) -> bytes:
        return encode(Stage().pixels(self.scene))

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, str], dict[str, Any]]:
        data = {"text/plain": self.text, "image/png": base64.b64encode(self.png).decode("ascii")}
        return data, {"image/png": {"alt": self.alt}}
