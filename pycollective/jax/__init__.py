"""Collectives inside jax.jit: `import pycollective.jax`. See docs/jax.md."""
