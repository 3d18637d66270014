"""The interface of `horovod.tensorflow`: `import pycollective.tensorflow as hvd`. See docs/from-horovod.md."""
