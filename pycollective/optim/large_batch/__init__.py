"""Large batches: batches that grow, and the noise of gradients, measured and added."""
