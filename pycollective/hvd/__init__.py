"""The parts of Horovod's interface that have no framework in them; each framework's package is built on them."""
