"""The gradients of a step: which ranks have which, how they are compressed, and all of them in one call."""
