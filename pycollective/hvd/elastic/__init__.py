"""Training that survives lost ranks, whatever the framework: states, their commits, and the loop around training."""
