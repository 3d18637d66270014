"""Communicators: finding the ranks, sharing memory, and the collectives."""
