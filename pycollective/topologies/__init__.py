"""The topologies: one file each, found automatically. A new one only needs a new file here."""
