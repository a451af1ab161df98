"""Schedules: how the learning rate changes. Steps count from 1; a warm-up of 0 is none."""

from ablate.parts.schedule.contract import Schedule

__all__ = ["Schedule"]
