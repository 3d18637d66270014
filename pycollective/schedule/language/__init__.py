"""The language that topologies are written in, and the topologies by name."""
