"""From a program to a schedule, in three passes."""
