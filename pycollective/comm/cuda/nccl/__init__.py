"""NCCL: the library found at run time, its communicators, and calls between hosts over it."""
