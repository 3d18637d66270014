"""Schedules and programs as pictures."""

from pycollective.schedule.drawing.diagram import draw, figure
from pycollective.schedule.drawing.diagram import step_times as step_times

__all__ = ["draw", "figure"]
