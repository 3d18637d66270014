"""Measurements of the packages for other frameworks than torch."""
