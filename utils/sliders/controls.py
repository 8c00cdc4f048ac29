"""One number that a learner can change: a slider to move and a field to type into, always showing the same value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import ipywidgets as widgets

from ..timeline.units import SHOWN, number

STEPS = 100             # a slider without a step of its own gets about so many
LABEL_PX, SLIDER_PX, FIELD_PX, UNIT_PX = 90, 290, 70, 40


@dataclass(frozen=True)
class Control:
    """A number from ``low`` to ``high``, at first ``value``; ``whole``: integers only.

    Raises ValueError when the value does not lie between the limits or the step is not positive.
    """

    name: str
    low: float
    high: float
    value: float
    step: float | None = None
    label: str = ""
    unit: str = ""
    whole: bool = False

    def __post_init__(self) -> None:
        numbers = (self.low, self.high, self.value)
        if not all(math.isfinite(each) for each in numbers) or not self.low <= self.value <= self.high:
            raise ValueError(f"control {self.name!r} starts at {self.value}, which does not lie between "
                             f"{self.low} and {self.high}")
        if self.step is not None and not self.step > 0:
            raise ValueError(f"control {self.name!r} has step {self.step}: give a step above 0")
        if self.whole and any(each != int(each) for each in numbers):
            raise ValueError(f"control {self.name!r} is whole: give whole numbers, not {numbers}")

    @property
    def title(self) -> str:
        return self.label or self.name

    def admit(self, value: object) -> tuple[float | None, str]:
        """The nearest value that is allowed and what to tell the learner ("" when nothing was changed)."""
        try:
            asked = float(value)      # type: ignore[arg-type]
        except (TypeError, ValueError):
            asked = math.nan
        if math.isnan(asked):
            return None, f"{self.title}: {value!r} is no number, the value stays"
        limited = min(max(asked, self.low), self.high)
        allowed = round(limited) if self.whole else limited
        if allowed == asked:
            return allowed, ""
        why = "a whole number" if limited == asked else f"between {number(self.low)} and {number(self.high)}"
        return allowed, f"{self.title}: {asked:g} is not {why}, set to {number(allowed)}"

    @property
    def limits(self) -> str:
        return f"{number(self.low)} to {number(self.high)}"


class ControlRow(widgets.HBox):
    """Slider and number field of one control; calls ``changed(message)`` once per change of the value."""

    def __init__(self, control: Control, changed: Callable[[str], None]) -> None:
        self.control, self._changed, self._busy = control, changed, False
        self._value = control.admit(control.value)[0]
        step = control.step or (1 if control.whole else (control.high - control.low) / STEPS or 1)
        kind, field = ((widgets.IntSlider, widgets.IntText) if control.whole
                       else (widgets.FloatSlider, widgets.FloatText))
        self.slider = kind(
            value=self._value, min=control.low, max=control.high, step=step, readout=False,
            description=control.title, style={"description_width": f"{LABEL_PX}px"},
            layout={"width": f"{SLIDER_PX}px", "max_width": "100%"})
        self.field = field(value=self._value, step=step, tooltip=f"{control.title}, typed",
                           layout={"width": f"{FIELD_PX}px"})
        self.slider.observe(self._from_slider, "value")
        self.field.observe(self._from_field, "value")
        unit = widgets.Label(SHOWN.get(control.unit, control.unit), layout={"width": f"{UNIT_PX}px"})
        super().__init__([self.slider, self.field, unit])

    @property
    def value(self) -> float:
        return self._value

    def show(self, value: float) -> None:
        """Set both widgets without reporting a change."""
        self._value, self._busy = value, True
        try:
            self.slider.value = self.field.value = value
        finally:
            self._busy = False

    def _from_slider(self, change: dict[str, object]) -> None:
        if not self._busy:
            self._take(*self.control.admit(round(change["new"], 9)))     # 0.1 steps arrive as 0.30000000000000004

    def _from_field(self, change: dict[str, object]) -> None:
        if not self._busy:
            self._take(*self.control.admit(change["new"]))

    def _take(self, value: float | None, message: str) -> None:
        before = self._value
        self.show(before if value is None else value)
        if self._value != before or message:
            self._changed(message)
