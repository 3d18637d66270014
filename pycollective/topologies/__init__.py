"""The topologies: one file each, found by being here. A new one needs a new file and nothing else."""
