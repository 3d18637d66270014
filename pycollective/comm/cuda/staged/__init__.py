"""GPU arrays through host memory: calls and messages where no path between GPUs is used."""
