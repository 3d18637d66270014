"""Simulation of a program's cost on a network."""
