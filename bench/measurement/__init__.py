"""How times are taken: rounds in which candidates take turns, their statistics, and times without a peer."""
