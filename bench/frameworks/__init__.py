"""Measurements inside the frameworks, against what people use there."""
