"""Decentralised SGD: ranks average parameters with their neighbours instead of summing gradients over all ranks."""
