"""Proofs that a schedule computes its collective, without races and deadlocks."""
