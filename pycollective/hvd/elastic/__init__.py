"""Training that survives lost ranks, for all frameworks: states, their commits, and the loop around training."""
