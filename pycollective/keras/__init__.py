"""The interface of `horovod.keras`: `import pycollective.keras as hvd`. See docs/from-horovod.md."""
