"""The framework-independent parts of Horovod's interface; each framework's package is built on them."""
