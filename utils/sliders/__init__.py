"""Sliders that redraw a timeline; in a saved notebook, where no kernel runs, the picture of the values they had."""

from .controls import Control
from .saved import strip_widget_state
from .schedule import ScheduleSliders
from .view import TimelineSliders

__all__ = ["Control", "ScheduleSliders", "TimelineSliders", "strip_widget_state"]
