"""The parts of `horovod.common` that scripts import."""
