"""Compiles a program into a schedule, in three passes."""
