"""The collectives on TensorFlow's tensors, eagerly and in graphs."""
