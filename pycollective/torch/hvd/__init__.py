"""Implementation of the Horovod interface for torch; its public modules are those of pycollective.torch."""
