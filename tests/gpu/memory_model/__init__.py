"""Proofs about the GPU's memory order that need no GPU: of litmus tests, and of whole schedules."""
