"""The GPU side of a communicator; loaded by its first use."""
