"""The arrays that optimizers work on: by name, of any library, in GPU memory, and fused in one buffer."""
