"""The collectives of a process group: torch's arguments, and the calls that are made of them."""
