"""What the Horovod interface for torch is made of; its public modules are those of pycollective.torch."""
