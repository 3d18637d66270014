"""The interface of `horovod.mxnet`: `import pycollective.mxnet as hvd`. See docs/from-horovod.md."""
