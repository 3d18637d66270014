"""Schedules and programs as pictures."""
