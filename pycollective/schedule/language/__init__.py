"""The topology language, and the registry of topologies."""
