"""GPU arrays through host memory: calls, messages and copies where no path between GPUs is used."""
