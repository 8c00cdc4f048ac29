"""Sliders above a timeline: the part that every lesson shares."""

from __future__ import annotations

import base64
import gc
import html
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

from ..timeline import Picture, timeline
from ..timeline.png import FAST, encode
from ..timeline.scene import Stage, scene_height
from ..timeline.text import wrapped
from ..timeline.units import SHOWN, number
from .controls import Control, ControlRow
from .saved import WIDGET_VIEW

HIDDEN = "position:absolute;left:-9999px;width:1px;height:1px;overflow:hidden"     # read aloud, not shown


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python's cyclic garbage collector from stopping a redraw: its thousands of small objects live one step."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


class TimelineSliders(widgets.VBox):
    """Controls that redraw a timeline.

    ``controls``: what can be changed, from top to bottom. ``build(**values)``: the timeline for such values, one
    keyword per control: a Picture of ``utils.timeline`` or whatever ``timeline()`` draws. It should only calculate:
    it may run on another thread than the cell. ``reserve``: values at which the picture is highest, so that it never
    changes its size. Raises ValueError for controls of equal names; errors of the first ``build`` pass through,
    later ones are shown above the picture, which stays.
    """

    def __init__(self, controls: Iterable[Control], build: Callable[..., Any],
                 reserve: Mapping[str, float] | None = None) -> None:
        controls = list(controls)
        names = [control.name for control in controls]
        if len(set(names)) < len(names):
            raise ValueError(f"two controls share a name: {', '.join(map(repr, names))}")
        self.redraws = 0
        self._build, self._stage = build, Stage(sticky=True)
        self._rows = {control.name: ControlRow(control, self._redraw) for control in controls}
        self._height_in = 0.0
        if reserve:
            self._height_in = scene_height(self._picture_for({**self.values, **reserve}).scene)
        self.picture = self._picture_for(self.values)
        self._image = widgets.Image(format="png", layout={
            "align_self": "flex-start", "max_width": "100%", "object_fit": "contain"})
        self._message = widgets.HTML(layout={"min_height": "26px"})     # a message must not move the picture
        controls_box = widgets.Box(list(self._rows.values()), layout={"flex_flow": "row wrap"})
        super().__init__([controls_box, self._message, self._image])
        self._redraw("")

    # values
    @property
    def values(self) -> dict[str, float]:
        """The current value of every control, by name."""
        return {name: row.value for name, row in self._rows.items()}

    def set(self, **values: float) -> None:
        """Change several controls at once, with one redraw.

        Raises ValueError for an unknown name or a value that is not allowed; then nothing has changed.
        """
        admitted = {name: self._checked(name, value) for name, value in values.items()}
        for name, value in admitted.items():
            self._rows[name].show(value)
        self._redraw("")

    def _checked(self, name: str, value: float) -> float:
        if name not in self._rows:
            raise ValueError(f"there is no control {name!r}; there are {', '.join(map(repr, self._rows))}")
        allowed, message = self._rows[name].control.admit(value)
        if message or allowed is None:
            raise ValueError(message.replace("set to", "the nearest is"))
        return allowed

    # drawing
    def _picture_for(self, values: Mapping[str, float]) -> Picture:
        made = self._build(**values)
        return made if isinstance(made, Picture) else timeline(made)

    def _redraw(self, message: str) -> None:
        self.redraws += 1
        with _no_collection():
            self._redraw_now(message)

    def _redraw_now(self, message: str) -> None:
        try:
            picture = self._picture_for(self.values)
            pixels = self._stage.pixels(replace(picture.scene, height_in=self._height_in))
        except Exception as error:
            if not self._image.value:
                raise
            self._tell(f"{message} {error}".strip())
            return
        self.picture = picture
        self._image.layout.width, self._image.layout.height = f"{pixels.shape[1]}px", f"{pixels.shape[0]}px"
        self._image.value = encode(pixels, FAST)
        self._tell(message)

    def _tell(self, message: str) -> None:
        facts = f'<span style="{HIDDEN}">{html.escape(self.picture.alt)}</span>'
        self._message.value = f'<div role="status" aria-live="polite">{html.escape(message)}{facts}</div>'

    # what is kept where no kernel runs
    @property
    def text(self) -> str:
        """Values of the controls and the text of the timeline."""
        said = [f"{row.control.title} {number(row.value)} {SHOWN.get(row.control.unit, row.control.unit)}".rstrip()
                + f" ({row.control.limits})" for row in self._rows.values()]
        return "\n".join([*wrapped("sliders: " + ", ".join(said)), "", self.picture.text])

    @property
    def png(self) -> bytes:
        """The picture at the current values, as a PNG file."""
        return self.picture.png

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None, **kwargs: Any) -> Any:
        view = super()._repr_mimebundle_(**kwargs) or {}
        data = {"text/plain": self.text, "image/png": base64.b64encode(self.png).decode("ascii")}
        if WIDGET_VIEW in view:
            data[WIDGET_VIEW] = view[WIDGET_VIEW]
        return data, {"image/png": {"alt": self.picture.alt}}


