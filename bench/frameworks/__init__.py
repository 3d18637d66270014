"""Calls from TensorFlow, Keras, JAX and MXNet against what people use there without this package."""
